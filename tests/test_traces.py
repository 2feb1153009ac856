"""Spans of requests, as a collector gets them from a real server, and the log beside them."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.server import PING_HEADERS, ServerProcess
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.server.loading import load
from zaqar_lite.server.logs import request_traces

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP/HTTP collector on a free port."""

    def __init__(self) -> None:
        found: list[Span] = []
        self.spans = found

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding", "identity") != "identity":
                    raise AssertionError
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        found.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_requests_of_traced_callers_are_spans_and_lines_of_the_log(collector: Collector) -> None:
    env = {
        "ZAQAR_LITE_TRACE_ENDPOINT": collector.url,
        "ZAQAR_LITE_TRACE_SHARE": "0",
        "ZAQAR_LITE_ACCESS_LOG": "true",
    }
    with ServerProcess("memory://", env=env) as server:
        for flags, name in (("01", "traced"), ("00", "not"), (None, "none")):
            headers = dict(PING_HEADERS)
            if flags is not None:
                headers["traceparent"] = f"00-{TRACE}-{PARENT}-{flags}"
            httpx.put(f"{server.url}/v2/queues/{name}", headers=headers).raise_for_status()
        assert server.terminate() == 0
        lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    (span,) = collector.spans
    assert span.name == "PUT /v2/queues/{queue_name}"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.kind == Span.SPAN_KIND_SERVER
    attributes = {one.key: one.value for one in span.attributes}
    assert attributes["http.response.status_code"].int_value == 201
    by_queue = {line["queue"]: line for line in lines if line.get("route") == "create_queue"}
    logged = by_queue["traced"]
    assert (logged["trace_id"], logged["span_id"]) == (TRACE, span.span_id.hex())
    assert attributes["zaqar.request_id"].string_value == logged["request_id"]
    assert by_queue["not"]["span_id"] == PARENT
    assert "span_id" not in by_queue["none"]


def test_a_collector_that_is_away_does_not_hold_up_the_end() -> None:
    env = {"ZAQAR_LITE_TRACE_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
    with ServerProcess("memory://", env={**env, "ZAQAR_LITE_TRACE_SHARE": "1"}) as server:
        begun = time.monotonic()
        assert server.terminate() == 0
    assert time.monotonic() - begun < 15


def test_without_the_extra_the_setting_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    settings = load(environment={}, overrides={"trace_endpoint": "http://127.0.0.1:9/v1/traces"})
    with pytest.raises(ConfigurationError, match=r"zaqar-lite\[otel\]"):
        request_traces(settings)
