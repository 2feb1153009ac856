"""Spans of requests: whose are sampled, and what one says."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from zaqar_lite.api.request import Request, Route, request_of
from zaqar_lite.api.tracing import RequestTraces
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

OF = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
(ROUTE,) = (
    one
    for one in create_app(load(environment={}, overrides={"store": "memory://"})).routes
    if one.name == "delete_queue"
)


def traced(
    share: float, parent: str | None, status: int = 204, route: Route | None = ROUTE
) -> tuple[list[ReadableSpan], Request]:
    """The spans of a request, and that request."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = RequestTraces(provider, share)
    headers = () if parent is None else ((b"traceparent", parent.encode()),)
    request = request_of("DELETE", b"/v2/queues/orders", b"", headers)
    if (span := traces.begin(request)) is not None:
        request.route, request.project = route, "shop" if route else ""
        traces.end(span, request, status)
    return list(exporter.get_finished_spans()), request


@pytest.mark.parametrize("parent", [f"00-{OF}-01", f"00-{OF}-03", f"01-{OF}-01-more", None])
def test_a_sampled_request_is_a_span_of_its_trace(parent: str | None) -> None:
    [span], request = traced(0.0 if parent else 1.0, parent)
    own = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0"
    assert request.headers[b"traceparent"].decode().startswith(own)
    assert (own[3:35] == OF[:32]) is (parent is not None)


@pytest.mark.parametrize(
    "parent", [*(f"00-{OF}-{end}" for end in ("00", "02", "1", "xx")), "", None]
)
def test_who_says_no_is_not_sampled(parent: str | None) -> None:
    assert traced(0.0 if parent is None else 1.0, parent)[0] == []


@pytest.mark.parametrize("status", [204, 404, 499, 500, 503])
def test_a_span_says_what_was_asked_and_what_came_of_it(status: int) -> None:
    [span], request = traced(1.0, None, status)
    told = {
        "http.request.method": "DELETE",
        "url.path": "/v2/queues/orders",
        "http.route": "/v2/queues/{queue_name}",
        "http.response.status_code": status,
        "zaqar.project": "shop",
        "zaqar.request_id": request.request_id,
    }
    failed = status >= 500
    assert span.name == "DELETE /v2/queues/{queue_name}"
    assert dict(span.attributes or {}) == told | ({"error.type": str(status)} if failed else {})
    assert span.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    [other], _ = traced(1.0, None, status, None)
    assert other.name == "DELETE"
    assert not {"http.route", "zaqar.project"} & set(other.attributes or {})
