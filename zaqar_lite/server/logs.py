"""Logs on standard error, bounded where clients cause the lines, and traces for a collector."""

import json
import logging
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from zaqar_lite import __version__
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.settings import Settings

if TYPE_CHECKING:
    from zaqar_lite.api.tracing import RequestTraces

_OF_UVICORN = re.compile("(?:startup|shutdown) failed")
_UNPRINTED = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")
"""Characters that end a line, control a terminal, or change the direction of text."""


def escaped(text: str) -> str:
    """Escape control characters as JSON does, so that one record stays one line of text."""
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Render time, level, logger, message, the fields of an access line, and a traceback."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return escaped(json.dumps(line, ensure_ascii=False))


class AccessFormatter(logging.Formatter):
    """Write a record as a plain line, followed by the fields of an access line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Render the line."""
        fields = " ".join(
            f"{name}={value}" for name, value in getattr(record, "fields", {}).items()
        )
        return escaped(f"{super().formatMessage(record)} {fields}".rstrip())

    def formatException(self, ei: Any) -> str:  # noqa: N802, ANN401 - logging's
        """Render a traceback; its line ends are kept."""
        return "\n".join(map(escaped, super().formatException(ei).split("\n")))


def configure(level: str = "info") -> None:
    """Send all logs to standard error: plain lines to a terminal, else lines of JSON.

    `level` is the lowest level that is logged. Debug lines of libraries are never logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(AccessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(JsonFormatter())
    # Leave out uvicorn's lines about a failed start or end: our own line before them says why.
    handler.addFilter(lambda record: not _OF_UVICORN.search(record.getMessage()))
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(ours, logging.INFO), handlers=[handler], force=True)
    logging.getLogger("zaqar_lite").setLevel(ours)
    for noisy in ("httpx", "swiftclient", "pika", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(max(ours, logging.WARNING))
    logging.getLogger("keystoneauth").setLevel(logging.ERROR)  # it warns at each try; we say why


INTERVAL = 60.0
"""Seconds after a line in which the same text is only counted."""


class LogThrottle(logging.Filter):
    """Lets each of these texts into the log once a minute; the next line tells how many came.

    The texts are those of `record.msg`, before arguments are put in.
    """

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self._quiet_until = dict.fromkeys(texts, 0.0)
        self._more: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is logged."""
        text, now = record.msg, time.monotonic()
        if text not in self._quiet_until:
            return True
        if now < self._quiet_until[text]:
            self._more[text] += 1
            return False
        self._quiet_until[text] = now + INTERVAL
        if count := self._more.pop(text, 0):
            record.msg = f"{text} ({count} more since the last line)"
        return True


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
