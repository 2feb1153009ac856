"""Spans of requests: whose are sampled, and what one says."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from zaqar_lite.api.request import Request, request_of
from zaqar_lite.api.tracing import RequestTraces
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traced(
    share: float, *headers: tuple[bytes, bytes], status: int = 204, route: bool = True
) -> tuple[Sequence[ReadableSpan], Request]:
    """The spans of a request, and that request."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = RequestTraces(provider, share)
    request = request_of("DELETE", b"/v2/queues/orders", b"", headers)
    request.project = "shop" if route else ""
    span = traces.begin(request)
    if route:
        app = create_app(load(environment={}, overrides={"store": "memory://"}))
        (request.route,) = (one for one in app.routes if one.name == "delete_queue")
    if span is not None:
        traces.end(span, request, status)
    return exporter.get_finished_spans(), request


@pytest.mark.parametrize(
    ("parent", "share", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", 0.0, True),
        (f"00-{TRACE}-{PARENT}-03", 0.0, True),
        (f"01-{TRACE}-{PARENT}-01-more", 0.0, True),
        (f"00-{TRACE}-{PARENT}-00", 1.0, False),
        (f"00-{TRACE}-{PARENT}-02", 1.0, False),
        (f"00-{TRACE}-{PARENT}-1", 1.0, False),
        (f"00-{TRACE}-{PARENT}-xx", 1.0, False),
        ("", 1.0, False),
        (None, 1.0, True),
        (None, 0.0, False),
    ],
)
def test_a_caller_decides_or_else_the_share(
    parent: str | None, share: float, sampled: bool
) -> None:
    headers = () if parent is None else ((b"traceparent", parent.encode()),)
    spans, request = traced(share, *headers)
    assert len(spans) == sampled
    if sampled:
        context = spans[0].context
        own = f"00-{context.trace_id:032x}-{context.span_id:016x}-0"
        assert request.headers[b"traceparent"].decode().startswith(own)
        assert (context.trace_id == int(TRACE, 16)) is (parent is not None)


@pytest.mark.parametrize(
    ("status", "failed"), [(204, False), (404, False), (499, False), (500, True), (503, True)]
)
def test_a_span_says_what_was_asked_and_what_came_of_it(status: int, failed: bool) -> None:
    (span,), request = traced(1.0, status=status)
    told = {
        "http.request.method": "DELETE",
        "url.path": "/v2/queues/orders",
        "http.route": "/v2/queues/{queue_name}",
        "http.response.status_code": status,
        "zaqar.project": "shop",
        "zaqar.request_id": request.request_id,
    }
    assert span.name == "DELETE /v2/queues/{queue_name}"
    assert dict(span.attributes or {}) == told | ({"error.type": str(status)} if failed else {})
    assert span.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)


def test_a_span_of_a_path_that_is_none_has_no_route_and_no_project() -> None:
    (span,), _ = traced(1.0, status=404, route=False)
    assert span.name == "DELETE"
    assert not {"http.route", "zaqar.project"} & set(span.attributes or {})
