"""A queue's stream of server-sent events, read as the WHATWG's standard says."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from zaqar_lite.client.arguments import takes
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call, Request, Response, bad_answer
from zaqar_lite.client.endpoints.messages import read_message
from zaqar_lite.client.endpoints.requests import queue_path, with_query
from zaqar_lite.client.errors import BadAnswer, Unavailable, Unreachable
from zaqar_lite.client.models import Message
from zaqar_lite.client.steps import Do, Page, Pages, Sleep, Steps, Stream, listing

PAUSE = 1.0
"""Seconds between the end of a stream and the next."""
_MOST = 64 << 20
"""The most bytes of one event; a longer one is not from a Zaqar Lite server."""


class Events(BaseClient):
    """Follow a queue."""

    @listing
    def events(
        self,
        queue: str,
        *,
        marker: str | None = None,
        start: str = "first",
        echo: bool = True,
        include_delayed: bool = False,
        details: bool = False,
    ) -> Pages[Message]:
        """Yield messages as they become visible, claiming none, for as long as you read.

        A stream that was cut is opened again, as soon as the server answers, and goes on where it
        was: nothing is lost that is still there. On a queue with delays a message may come twice
        then.

        Args:
            queue: the queue.
            marker: begin after this message, or this marker of a list.
            start: where to begin without one: "first" or "now".
            echo: whether to show what this client id posted.
            include_delayed: whether to show what is not claimable yet.
            details: whether to ask for claim counts, times, headers and dead-letter sources.

        Raises:
            NotFound: the server has no streams (OpenStack's Zaqar has none).
            Unreachable, Unavailable: it could not be opened the first time.
            BadAnswer: what comes is not a message.
        """
        takes("marker", marker, str, "a marker, or the id of a message")
        given: dict[str, str | bool | None] = {
            "start": start,
            "echo": echo,
            "include_delayed": include_delayed or None,
            "details": details or None,
        }
        return EventPages(self, queue, marker, given)


@dataclasses.dataclass(eq=False)
class EventPages(Stream[Message]):
    """The messages of a stream that is opened again when it was cut; a page is what came at once.

    Whoever asks for a page has taken the messages of the page before.
    """

    _client: BaseClient
    _queue: str
    _marker: str | None
    _given: Mapping[str, str | bool | None]
    _was_open: bool = False
    _stream: Any = None
    _parser: "EventParser" = dataclasses.field(init=False)

    def __call__(self, _: str | None) -> Steps[Page[Message]]:
        """Return the next messages; none where the stream has to be opened again."""
        messages: list[Message] = []
        try:
            if self._stream is None:
                self._stream = yield from self._client._exchange(self._opening())
                self._was_open, self._parser = True, EventParser()
            part: bytes = yield Do(self._stream.read)
        except (Unreachable, Unavailable):
            if not self._was_open:
                raise
            part = b""
        try:
            for event in self._parser.feed(part):
                if event.data is not None:
                    messages.append(read_message(self._queue, json.loads(event.data)))
                self._marker = event.id or self._marker
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadAnswer("Not Zaqar's protocol", f"an event is no message: {error}") from error
        if not part:
            yield from self.close()
            yield Sleep(PAUSE)
        return Page(messages, "more")

    def close(self) -> Steps[None]:
        """End the stream, and its connection."""
        stream, self._stream = self._stream, None
        if stream is not None:
            yield Do(stream.close)

    def _opening(self) -> Call[Any]:
        def read(response: Response) -> Any:  # noqa: ANN401 - as each transport has it
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise bad_answer(response, "a stream of events was expected")
            return response.stream

        path = with_query(queue_path(self._queue, "events"), marker=self._marker, **self._given)
        return Call(Request("GET", path, {"Accept": "text/event-stream"}, streams=True), read)


class Event(NamedTuple):
    """One event, or the news that an id has moved: then there is no data."""

    id: str | None
    data: bytes | None


class EventParser:
    """Cut a stream into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._id: str | None = None
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[Event]:
        """Take a part of the stream; yield the events that are whole.

        Raises:
            ValueError: an event does not end.
        """
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").split(b"\n")
        if len(self._rest) > _MOST:
            message = "an event of the stream does not end"
            raise ValueError(message)
        for line in lines:
            if not line:
                if self._data or self._id is not None:
                    yield Event(self._id, b"\n".join(self._data) if self._data else None)
                self._id, self._data = None, []
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
