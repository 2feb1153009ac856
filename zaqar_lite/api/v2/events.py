"""Server-sent events: a queue's messages, as they become visible."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import orjson

from zaqar_lite.api.checks import EVENT_STREAM
from zaqar_lite.api.long_polling import LongRequests, watch
from zaqar_lite.api.render import Renderer
from zaqar_lite.api.request import Parameter, Refused, Request, Response, Write
from zaqar_lite.api.routes import DETAILS, route
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.event_streams import HEARTBEAT, LONGEST, Event, EventStreams, Stream

RETRY = 2_000
"""Milliseconds after which a browser connects again."""
_AWAY = 2.0
"""Seconds between two tries while the store is away."""
_LATEST = 10.0
"""Seconds that a stream at its end has for the messages that are there."""
_HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
_ANY_ORIGIN = (b"access-control-allow-origin", b"*")
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(eq=False, repr=False)
class EventActions:
    """The action of `/v2/queues/{queue_name}/events`."""

    events: EventStreams
    renderer: Renderer
    long_requests: LongRequests

    def __post_init__(self) -> None:
        self._blocked: set[asyncio.Task[object]] = set()

    def close(self) -> None:
        """End the streams that wait for a slow reader: the server stops."""
        for task in self._blocked:
            task.cancel()

    @route(
        "GET /v2/queues/{queue_name}/events",
        "messages:events read",
        (200, 404, 429),
        (
            Parameter("marker", "Text", "The event, or the message, to begin behind."),
            Parameter("start", "StreamStart", "'first' or 'now'; without a marker."),
            Parameter("seconds", "StreamSeconds", "How long the stream lasts at most."),
            Parameter("echo", "Flag", "Show your own messages too."),
            Parameter("include_delayed", "Flag", "Show delayed messages at once."),
            DETAILS,
            Parameter("Last-Event-ID", "Text", "As the marker, before it.", "header"),
        ),
        streams=True,
        rel="queue_events",
    )
    async def stream_events(self, request: Request) -> Response:
        """Stream a queue's messages."""
        echo = request.flag("echo")
        details = request.flag("details")
        include_delayed = request.flag("include_delayed")
        seconds = _seconds(request, request.whole("seconds", LONGEST))
        start = request.text("start")
        if start not in (None, "first", "now"):
            raise Refused(400, "Invalid parameter", "'start' must be 'first' or 'now'.")
        last = request.headers.get(b"last-event-id", b"").decode("latin-1")
        queue = request.queue
        request.waits = seconds
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = await self.events.open(
            queue,
            marker=last or request.text("marker"),
            from_now=start == "now",
            exclude_client_id=None if echo else request.client_id,
            include_delayed=include_delayed,
            gone=gone,
        )
        writer = _Writer(self._blocked, self.renderer, queue, details)
        leave = (watch(request, gone), self.long_requests.hold(request, lambda _: _end(gone)))
        run = partial(self._run, stream, writer, seconds=seconds, gone=gone, leave=leave)
        headers = (*_HEADERS, _ANY_ORIGIN) if request.signed_query else _HEADERS
        return Response(200, b"", headers, EVENT_STREAM, stream=run)

    async def _run(
        self,
        stream: Stream,
        writer: "_Writer",
        write: Write,
        *,
        seconds: int,
        gone: asyncio.Future[None],
        leave: Sequence[Callable[[], object]],
    ) -> None:
        """Write a stream. Nothing else is kept of its request: there may be thousands."""
        time, writer.write = asyncio.get_running_loop().time, write
        ends, beat, looks = time() + seconds, time() + HEARTBEAT, True
        try:
            await writer.begin(str(stream.cursor))
            while not (gone.done() or self.events.long_polling.is_closed):
                events, is_away = None, False
                if looks:
                    try:
                        events = await stream.look()
                    except Unavailable:
                        is_away = True
                        await asyncio.wait((gone,), timeout=min(_AWAY, max(ends - time(), 0)))
                if events is not None:
                    await writer.tell(events, str(stream.cursor))
                elif time() >= beat:
                    await writer.beat(str(stream.cursor))
                if events is not None or time() >= beat:
                    beat = time() + HEARTBEAT
                if time() >= ends and (events is None or time() >= ends + _LATEST):
                    return
                if events is None and not is_away:
                    until = min(beat, ends)
                    looks = await stream.rest(until - time()) or time() < until
        finally:
            for one in leave:
                one()
            await stream.leave()


@dataclass(slots=True, eq=False)
class _Writer:
    """Write events, and remember which id the client has."""

    blocked: set[asyncio.Task[object]]
    renderer: Renderer
    queue: QueueRef
    details: bool
    id: str = ""
    write: Write = field(init=False)

    async def begin(self, cursor: str) -> None:
        """Give the id to come back with, should nothing happen."""
        self.id = cursor
        await self._send(b"retry: %d\nid: %b\n\n" % (RETRY, cursor.encode()))

    async def beat(self, cursor: str) -> None:
        """Say that the stream lives, and where it stands."""
        await self._send(b":\n\n" if cursor == self.id else self._at(cursor))

    async def tell(self, events: Sequence[Event], cursor: str) -> None:
        """Write events, in one piece."""
        parts = []
        for event in events:
            shown = self.renderer.message(self.queue, event.message, details=self.details)
            if event.cursor is not None:
                self.id = str(event.cursor)
                parts.append(b"id: %b\n" % self.id.encode())
            lines = _LINE_END.split(orjson.dumps(shown))
            parts.append(b"".join([b"data: %b\n" % line for line in lines]) + b"\n")
        if cursor != self.id:
            parts.append(self._at(cursor))
        await self._send(b"".join(parts))

    def _at(self, cursor: str) -> bytes:
        self.id = cursor
        return b"id: %b\n\n" % cursor.encode()

    async def _send(self, part: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self.blocked.add(task)
        try:
            await self.write(part)
        finally:
            self.blocked.discard(task)


def _end(gone: asyncio.Future[None]) -> None:
    """End a stream as if its reader had gone."""
    if not gone.done():
        gone.set_result(None)


def _seconds(request: Request, wanted: int) -> int:
    """How long a stream lasts: as asked, but no longer than the credential of its request.

    Raises:
        Refused: 400, out of range.
    """
    if not 0 <= wanted <= LONGEST:
        raise Refused(
            400, "Invalid parameter", f"'seconds' must be between 0 and {LONGEST}; it is {wanted}."
        )
    now = datetime.now(UTC)
    expires = request.headers.get(b"url-expires")
    if expires is not None and request.is_signed:
        until = datetime.fromisoformat(expires.decode("latin-1"))
        until = until.replace(tzinfo=UTC) if until.tzinfo is None else until
        wanted = min(wanted, max(int((until - now).total_seconds()), 0))
    expires_at = request.principal.expires_at
    if expires_at is not None:
        wanted = min(wanted, max(expires_at // 1_000 - int(now.timestamp()), 0))
    return wanted
