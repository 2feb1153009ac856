"""OpenTelemetry spans of the client, against a real server, read from an exporter in memory."""

import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from tests.client.conftest import MovableServer
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client, Message, NewMessage, worker
from zaqar_lite.client.tracing import Tracing, context_of

pytestmark = pytest.mark.anyio
DELAY = 900
DAY = 86_400
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """What a provider of its own has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [one for one in self._exporter.get_finished_spans() if one.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def of(span: ReadableSpan) -> SpanContext:
    """A span's own context."""
    context = span.get_span_context()
    assert context is not None
    return context


def trace_ids(span: ReadableSpan) -> set[int]:
    """The traces that a span links to."""
    return {link.context.trace_id for link in span.links}


def the_only(spans: Sequence[ReadableSpan]) -> ReadableSpan:
    (span,) = spans
    return span


def test_one_trace_is_followed_over_a_delay_a_failing_worker_and_a_redrive_to_success(
    movable: MovableServer, queue: str, spans: Spans
) -> None:
    dead = f"{queue}-dead"
    with Client(movable.url, tracing=Tracing(spans.provider)) as client:
        client.create_queue(dead)
        client.create_queue(
            queue,
            {"_default_message_delay": DELAY, "_dead_letter_queue": dead, "_max_failures": 1},
        )
        with spans.provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
            client.post(queue, {"order": 1}, ttl=7 * DAY)
        sent = the_only(spans.named(f"send {queue}"))
        assert sent.kind is SpanKind.PRODUCER
        assert sent.parent is not None
        assert sent.parent.span_id == checkout.get_span_context().span_id
        origin = of(sent).trace_id
        assert origin == checkout.get_span_context().trace_id

        movable.advance(DELAY + 1)
        failing = [True]
        seen: list[int] = []

        @worker(queue, longest_pause=0.01)
        def handle(message: Message) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if failing[0]:
                raise KeyError("price")

        handle.run(client, until_empty=True)
        failed = the_only(spans.named(f"process {queue}"))
        assert failed.kind is SpanKind.CONSUMER
        assert failed.status.status_code is StatusCode.ERROR
        assert (failed.attributes or {})["error.type"] == "KeyError"
        assert seen == [of(failed).span_id]
        received = the_only(spans.named(f"claim {queue}"))
        settled = the_only(spans.named(f"settle {queue}"))
        assert {received.kind, settled.kind} == {SpanKind.CLIENT}
        assert trace_ids(received) == trace_ids(failed) == trace_ids(settled) == {origin}

        movable.advance(DAY)
        (letter,) = client.list_dead_letters(dead)
        carried = context_of(letter.headers)
        assert carried is not None
        assert (carried.trace_id, carried.span_id) == (origin, of(sent).span_id)
        job = client.start_redrive(dead, filter={}, delay=DELAY)
        give_up = time.monotonic() + 20
        while not client.stats(queue).total:
            assert time.monotonic() < give_up, job
            time.sleep(0.05)
        movable.advance(DELAY + 1)
        failing[0] = False
        handle.run(client, until_empty=True)
        done = spans.named(f"process {queue}")[-1]
        assert done.status.status_code is StatusCode.UNSET
        deleted = the_only(spans.named(f"delete {queue}"))
        assert trace_ids(done) == trace_ids(deleted) == {origin}
        assert client.stats(queue).total == 0
    longest = max((one.end_time or 0) - (one.start_time or 0) for one in [sent, failed, done])
    assert longest < 60e9, "no span lives as long as the delay"


def test_each_message_of_a_batch_has_its_own_context(
    server: ServerProcess, queue: str, spans: Spans
) -> None:
    own = NewMessage(body=3, headers={"TraceParent": FOREIGN, "kind": "x"})
    with Client(server.url, project="tests", tracing=Tracing(spans.provider)) as client:
        client.post_batch(queue, [1, 2, own])
        client.post_all(queue, [4, 5], batch_size=2)
        created = spans.named(f"create {queue}")
        assert [one.kind for one in created] == [SpanKind.PRODUCER] * 4
        first, second = spans.named(f"send {queue}")
        assert (first.kind, len(first.links), len(second.links)) == (SpanKind.CLIENT, 3, 2)
        assert (first.attributes or {})["messaging.batch.message_count"] == 3
        with client.claim(queue) as claim:
            contexts = {one.body: context_of(one.headers) for one in claim.messages}
            kept = claim.messages[2].headers
        assert kept == {"TraceParent": FOREIGN, "kind": "x"}
        made = {of(one).span_id for one in created} | {int(FOREIGN[36:52], 16)}
        assert {one.span_id for one in contexts.values() if one is not None} == made
        assert len(the_only(spans.named(f"claim {queue}")).links) == 5
        released = the_only(spans.named(f"release {queue}"))
        assert len(released.links) == 5
        assert [one.body for one in client.pop(queue)] == [1]
    popped = the_only(spans.named(f"pop {queue}"))
    assert trace_ids(popped) == {of(created[0]).trace_id}


async def test_an_async_worker_processes_within_spans_of_its_own(
    server: ServerProcess, queue: str, spans: Spans
) -> None:
    seen: dict[int, int] = {}
    tracing = Tracing(spans.provider, create=False)
    async with AsyncClient(server.url, project="tests", tracing=tracing) as client:

        @worker(queue, concurrency=3, batch=1)
        async def handle(message: Message) -> None:
            seen[message.body] = trace.get_current_span().get_span_context().span_id

        with spans.provider.get_tracer("x").start_as_current_span("run") as run:
            await client.post_batch(queue, [1, 2, 3])
        await handle.serve(client, until_empty=True)
    processed = spans.named(f"process {queue}")
    assert set(seen.values()) == {of(one).span_id for one in processed}
    assert len(seen) == 3
    origin = run.get_span_context().span_id
    assert {link.context.span_id for one in processed for link in one.links} == {origin}
    assert not spans.named(f"create {queue}")
