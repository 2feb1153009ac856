"""What goes over the wire, as values: no socket is known here."""

import dataclasses
import datetime as dt
import email.utils
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from zaqar_lite.client.errors import StatusError
from zaqar_lite.client.line import Line

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `path` begins with /v2/ and carries the query.

    `wait` is how many seconds the server may take longer than usual, because the request waits for
    messages; `line` learns its connection, so that the wait can be ended from elsewhere. A request
    that `streams` has an answer without an end.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None
    wait: int = 0
    line: Line | None = None
    streams: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer; header names are in lower case.

    `stream` is the body of one that goes on, as its transport gives it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    stream: object = None

    def retry_after(self) -> float | None:
        """Return the seconds that Retry-After asks for (a number or a date), None without one."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text)
        try:
            at = email.utils.parsedate_to_datetime(text)
        except (TypeError, ValueError):
            return None
        if at.tzinfo is None:
            at = at.replace(tzinfo=dt.UTC)
        return max(0.0, (at - dt.datetime.now(dt.UTC)).total_seconds())


@dataclasses.dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing; `marker` leads to the next, None after the last."""

    items: Sequence[T]
    marker: str | None


class Operation(NamedTuple):
    """What a call does with messages, for tracing.

    Attributes:
        kind: `send`, `receive` or `settle`: the types of OpenTelemetry's messaging conventions.
        name: our own word for it.
        queue: the queue.
        entries: the encoded messages that are sent.
        ids: the messages that are settled.
    """

    kind: str
    name: str
    queue: str
    entries: Sequence[bytes] = ()
    ids: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One call of an endpoint: the request, and how to read its answer.

    Attributes:
        request: method, path, the endpoint's own headers, body.
        read: makes the result of a 2xx answer.
        meanings: what a status means to this endpoint, where that is more than usual.
        resend: whether it may be sent again after its answer was lost; False only where doing it
            twice would lose something (pop).
        operation: what it does with messages, where it sends, receives or settles some.
    """

    request: Request
    read: Callable[[Response], T_co]
    meanings: Mapping[int, type[StatusError]] | None = None
    resend: bool = True
    operation: Operation | None = None
