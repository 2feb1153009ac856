"""OpenTelemetry spans of the requests that are sampled, by its conventions for HTTP servers.

Whether a request is sampled is decided before anything of OpenTelemetry runs: its caller's
`traceparent` says so; requests without one are sampled at random.
"""

import asyncio
from random import random
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from zaqar_lite.api.request import Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_PROPAGATOR = TraceContextTextMapPropagator()
_ROOT = trace.set_span_in_context(trace.INVALID_SPAN)
_FIELDS = tuple(name.encode() for name in sorted(_PROPAGATOR.fields))
_PARENT_SIZE = 55
_SAMPLED = 1
_LONGEST_STOP = 5.0


class RequestTraces:
    """Make spans of requests: of all whose caller is traced, and of a share of the others.

    Args:
        provider: makes and exports the spans; it is shut down by `stop`.
        share: of the requests without a `traceparent`, from 0 to 1.
    """

    def __init__(self, provider: "TracerProvider", share: float) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("zaqar_lite.server")
        self._share = share

    def start(self) -> None:
        """Do nothing: the provider has begun when it was made."""

    async def stop(self) -> None:
        """Export what is left, for a few seconds at most, in a thread."""
        shutdown = asyncio.to_thread(self._provider.shutdown)
        await asyncio.wait({asyncio.ensure_future(shutdown)}, timeout=_LONGEST_STOP)

    def begin(self, request: Request) -> Span | None:
        """Start the span of a request, None where it is not sampled.

        The request's `traceparent` is replaced by that of the span, which the log then names.
        """
        parent = request.headers.get(b"traceparent")
        if parent is None:
            if random() >= self._share:  # noqa: S311 - a sample, no secret
                return None
        elif not _is_sampled(parent):
            return None
        carrier = {
            name.decode(): value.decode("latin-1")
            for name in _FIELDS
            if (value := request.headers.get(name)) is not None
        }
        span = self._tracer.start_span(
            request.method,
            context=_PROPAGATOR.extract(carrier, _ROOT),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": request.method,
                "url.path": request.path,
                "zaqar.request_id": request.request_id,
            },
        )
        own: dict[str, str] = {}
        _PROPAGATOR.inject(own, trace.set_span_in_context(span))
        named = {b"traceparent": own["traceparent"].encode()}
        request.headers = {**request.headers, **named}  # they may be other requests' too
        return span

    def end(self, span: Span, request: Request, status: int) -> None:
        """End the span of a request that was answered."""
        if request.route is not None:
            span.update_name(f"{request.method} {request.route.template}")
            span.set_attribute("http.route", request.route.template)
        span.set_attribute("http.response.status_code", status)
        if request.project:
            span.set_attribute("zaqar.project", request.project)
        if status >= 500:
            span.set_attribute("error.type", str(status))
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _is_sampled(parent: bytes) -> bool:
    try:
        return len(parent) >= _PARENT_SIZE and bool(int(parent[53:55], 16) & _SAMPLED)
    except ValueError:
        return False
