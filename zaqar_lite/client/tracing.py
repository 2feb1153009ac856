"""OpenTelemetry spans of what a client does with messages: send, receive, process, settle.

    from zaqar_lite.client.tracing import Tracing

    client = Client(tracing=Tracing())

Needs `pip install "zaqar-lite[otel]"`. Names, kinds and attributes are those of OpenTelemetry's
messaging conventions. A message carries the context that it was created in, as `traceparent` and
`tracestate` among its headers. The server keeps these through delays, claims, dead letters and
redrives, so whoever receives, processes or settles the message has a span with a link to that
context, days later too. No span lives as long as a delay.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from zaqar_lite import __version__
from zaqar_lite.client.calls import Call, Operation
from zaqar_lite.client.models import Held, Message, NewMessage
from zaqar_lite.client.serialization import Encoder, encode_message
from zaqar_lite.client.steps import Steps

T = TypeVar("T")
SYSTEM = "zaqar"
_PROPAGATOR = TraceContextTextMapPropagator()
_FIELDS = frozenset(_PROPAGATOR.fields)
_MOST_REMEMBERED = 10_000


class Tracing:
    """Make the spans of a client; give it to `Client(tracing=...)`.

    Claims then ask for the details of messages, because headers are among these. A message that is
    posted with a `traceparent` keeps it.

    Args:
        provider: where tracers come from; the global one by default.
        create: whether each message of a batch has a `create` span of its own, which the span of
            the request links to. Without, the messages of a batch carry the caller's context.
    """

    def __init__(
        self, provider: trace.TracerProvider | None = None, *, create: bool = True
    ) -> None:
        self._tracer: Tracer = trace.get_tracer(__name__, __version__, provider)
        self._create = create
        self._lock = threading.Lock()
        self._received: dict[tuple[str, str], SpanContext] = {}

    @contextmanager
    def process(self, message: Message) -> Generator[Span]:
        """Run a block in the span of processing a message.

        A `Worker` does so for its handler; a loop over a claim has to do it itself.
        """
        operation = Operation("process", "process", message.queue)
        with self._tracer.start_as_current_span(
            f"process {message.queue}",
            kind=SpanKind.CONSUMER,
            links=_links([context_of(message.headers)]),
            attributes={**_attributes(operation), **_of(message)},
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def around(
        self, handler: Callable[[Message], Any], *, is_async: bool
    ) -> Callable[[Message], Any]:
        """Return the handler within `process`."""

        def handle(message: Message) -> Any:  # noqa: ANN401 - the handler's own result
            with self.process(message):
                return handler(message)

        async def handle_async(message: Message) -> Any:  # noqa: ANN401 - as above
            with self.process(message):
                return await handler(message)

        return handle_async if is_async else handle

    def encode(
        self, queue: str, message: object, encoder: Encoder | None = None, *, alone: bool = False
    ) -> bytes:
        """Encode a message for a post, with the context of its span among its headers.

        `alone` says that the post has no other message: then the span of the post is the context.
        """
        new = message if isinstance(message, NewMessage) else NewMessage(body=message)
        span: Span | None = None
        own = context_of(new.headers)
        if own is None:
            if alone:
                span = self._start(Operation("send", "send", queue), SpanKind.PRODUCER)
                own = span.get_span_context()
            elif self._create:
                created = self._start(Operation("create", "create", queue), SpanKind.PRODUCER)
                own = created.get_span_context()
                created.end()
            else:
                own = trace.get_current_span().get_span_context()
            if own.is_valid:
                carried = trace.set_span_in_context(trace.NonRecordingSpan(own))
                headers = dict(new.headers or {})
                _PROPAGATOR.inject(headers, carried)
                new = replace(new, headers=headers)
        return _Entry(encode_message(new, encoder), own, span)

    def exchange(self, call: Call[T], carry_out: Callable[[Call[T]], Steps[T]]) -> Steps[T]:
        """Carry out a call, with a span if it is an operation on messages."""
        operation = call.operation
        if operation is None:
            return (yield from carry_out(call))
        span = self._begin(operation)
        headers = dict(call.request.headers)
        _PROPAGATOR.inject(headers, trace.set_span_in_context(span))
        try:
            result = yield from carry_out(
                replace(call, request=replace(call.request, headers=headers))
            )
        except Exception as error:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()
            raise
        if operation.kind != "receive" or self._note_received(operation, span, result):
            span.end()
        return result

    def _begin(self, operation: Operation) -> Span:
        """Start the span of a call, or go on with that of the one message that it sends."""
        entries = [one for one in operation.entries if isinstance(one, _Entry)]
        if len(entries) == 1 and entries[0].span is not None:
            return entries[0].span
        links: list[SpanContext | None] = [one.context for one in entries]
        with self._lock:
            links += [self._received.get((operation.queue, one)) for one in operation.ids]
        count = len(operation.entries) or len(operation.ids)
        span = self._start(operation, SpanKind.CLIENT, links)
        if count > 1:
            span.set_attribute("messaging.batch.message_count", count)
        elif operation.ids:
            span.set_attribute("messaging.message.id", operation.ids[0])
        return span

    def _note_received(self, operation: Operation, span: Span, result: object) -> bool:
        """Link the span to what was received; False if that was nothing: the span is dropped."""
        messages = result.messages if isinstance(result, Held) else result or ()
        if not isinstance(messages, list | tuple) or not messages:
            return False
        for message in messages:
            context = context_of(message.headers)
            if context is not None:
                span.add_link(context)
                self._remember(operation.queue, message.id, context)
        if len(messages) > 1:
            span.set_attribute("messaging.batch.message_count", len(messages))
        else:
            span.set_attributes(_of(messages[0]))
        return True

    def _remember(self, queue: str, message_id: str, context: SpanContext) -> None:
        """Keep a context for when the message is settled, by its id alone."""
        with self._lock:
            self._received.pop((queue, message_id), None)
            self._received[queue, message_id] = context
            if len(self._received) > _MOST_REMEMBERED:
                del self._received[next(iter(self._received))]

    def _start(
        self, operation: Operation, kind: SpanKind, links: Iterable[SpanContext | None] = ()
    ) -> Span:
        return self._tracer.start_span(
            f"{operation.name} {operation.queue}",
            kind=kind,
            links=_links(links),
            attributes=_attributes(operation),
            start_time=time.time_ns(),
        )


class _Entry(bytes):
    """An encoded message: the context it carries, and the span of its request if that has begun."""

    context: SpanContext | None
    span: Span | None

    def __new__(cls, text: bytes, context: SpanContext | None, span: Span | None) -> "_Entry":
        made = super().__new__(cls, text)
        made.context, made.span = context, span
        return made


def context_of(headers: Mapping[str, str] | None) -> SpanContext | None:
    """Return the context that a message carries, None without a valid one."""
    if not headers:
        return None
    carrier = {name.lower(): value for name, value in headers.items() if name.lower() in _FIELDS}
    if not carrier:
        return None
    found = trace.get_current_span(_PROPAGATOR.extract(carrier, _EMPTY)).get_span_context()
    return found if found.is_valid else None


_EMPTY = trace.set_span_in_context(trace.INVALID_SPAN)


def _links(contexts: Iterable[SpanContext | None]) -> list[Link]:
    return [Link(one) for one in contexts if one is not None and one.is_valid]


def _attributes(operation: Operation) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.kind,
        "messaging.destination.name": operation.queue,
    }


def _of(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"messaging.message.id": message.id}
    if message.claim_count is not None:
        found["messaging.zaqar.claim_count"] = message.claim_count
    return found
