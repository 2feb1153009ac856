"""Lines of the log and spans of traces: one line each, whatever anybody put into them."""

import json
import logging
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.local_http import LocalHandler, LocalServer
from tests.server import PING_HEADERS, ServerProcess
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.server import logs
from zaqar_lite.server.loading import load
from zaqar_lite.server.logs import AccessFormatter, JsonFormatter, request_traces

EVIL = "a\nb\r\x1b[31mred\x85\x7f\u2028c\u2029\u202eright"
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def record(message: str, **fields: object) -> logging.LogRecord:
    """A record of the access log."""
    made = logging.LogRecord("zaqar_lite", logging.INFO, "", 0, message, (), None)
    made.fields = fields
    return made


@pytest.mark.parametrize("formatter", [JsonFormatter(), AccessFormatter("%(message)s")])
def test_what_is_logged_is_one_line_without_control_characters(
    formatter: logging.Formatter,
) -> None:
    line = formatter.format(record(f"says {EVIL}", project=EVIL, status=200))
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    assert line.count(r"\u2028") == 2


def test_json_lines_keep_what_was_logged() -> None:
    line = json.loads(JsonFormatter().format(record("says \u00e9 " + EVIL, project=EVIL)))
    assert (line["message"], line["project"]) == ("says \u00e9 " + EVIL, EVIL)


def test_a_traceback_keeps_its_lines_on_a_terminal_and_no_others() -> None:
    made = record("failed")
    try:
        raise ValueError(EVIL)
    except ValueError:
        made.exc_info = sys.exc_info()
    text = AccessFormatter("%(message)s").format(made)
    assert "Traceback" in text
    assert not set(text) & set(LINE_ENDS) - {"\n"}
    assert "\x1b" not in text
    assert len(JsonFormatter().format(made).splitlines()) == 1


def test_what_clients_cause_is_logged_once_a_minute_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    logger = logging.getLogger("tests.seldom")
    logger.addFilter(logs.LogThrottle("%s is no HTTP"))
    for number in range(100):
        clock[0] = number / 2
        logger.warning("%s is no HTTP", number)
    logger.warning("another")
    assert caplog.messages == ["0 is no HTTP", "another"]
    for clock[0] in (60.0, 119.9, 120.0, 180.0):
        logger.warning("%s is no HTTP", "this")
    assert caplog.messages[2:] == [
        "this is no HTTP (99 more since the last line)",
        "this is no HTTP (1 more since the last line)",
        "this is no HTTP",
    ]


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Exported(LocalHandler):
    server: "Collector"

    def post(self) -> None:
        body = self.read()
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise AssertionError
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.answer(200)


class Collector(LocalServer):
    """An OTLP/HTTP collector."""

    def __init__(self) -> None:
        super().__init__(Exported)
        self.url += "/v1/traces"
        self.spans: list[Span] = []


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


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


def test_a_request_is_no_part_of_the_trace_of_one_before_it(collector: Collector) -> None:
    env = {"ZAQAR_LITE_TRACE_ENDPOINT": collector.url, "ZAQAR_LITE_TRACE_SHARE": "1"}
    with ServerProcess("memory://", env=env) as server:
        for _ in range(4):  # one head, which is parsed only once
            url = f"{server.url}/v2/queues/q/messages"
            httpx.get(url, headers=PING_HEADERS).raise_for_status()
        assert server.terminate() == 0
    found = [span for span in collector.spans if span.name.endswith("/messages")]
    assert len({span.trace_id for span in found}) == 4
    assert not any(span.parent_span_id for span in found)


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
