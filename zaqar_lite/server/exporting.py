"""Export traces by OpenTelemetry's SDK, which also reads its own environment variables."""

from typing import TYPE_CHECKING

from zaqar_lite import __version__
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.settings import Settings

if TYPE_CHECKING:
    from zaqar_lite.api.tracing import RequestTraces

_EXPORT_TIMEOUT = 5


def request_traces(settings: Settings) -> "RequestTraces | None":
    """Make what traces requests and sends the spans to a collector; None if no collector is set.

    Raises:
        ConfigurationError: the extra `otel` is not installed.
    """
    if settings.trace_endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            f"trace_endpoint needs {missing.name}: pip install 'zaqar-lite[otel]'."
        ) from None
    from zaqar_lite.api.tracing import RequestTraces  # noqa: PLC0415 - its libraries are an extra

    resource = Resource.create({"service.name": "zaqar-lite", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(settings.trace_endpoint, timeout=_EXPORT_TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RequestTraces(provider, settings.trace_share)
