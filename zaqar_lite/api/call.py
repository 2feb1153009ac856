"""What an action is asked and what it answers, whichever transport brings it.

An action takes a `Call` and gives back a `Result`, or raises. HTTP and WebSocket each make calls of
what they read, and write results in their own form; both pass the same checks on the way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from zaqar_lite.domain.identity import TRUSTED, Principal
from zaqar_lite.domain.limits import check_limit
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.topics import topic_ref

TOPICS = "/v2/topics/"
"""What the path of a topic begins with."""
Headers = tuple[tuple[bytes, bytes], ...]
Write = Callable[[bytes], Awaitable[None]]
"""Send a part of a body; it returns once the connection has room for more."""
Stream = Callable[[Write], Coroutine[Any, Any, None]]
"""Write a body part by part, and end with it."""
_TRUE = frozenset(("true", "True", "t", "yes", "y", "1", "on"))
_FALSE = frozenset(("false", "False", "f", "no", "n", "0", "off"))
_MAX_DIGITS = 1_000


class Refused(Exception):
    """An answer that is an error: status, title and description of Zaqar's error form.

    `document` is the body of one that has another form.
    """

    def __init__(
        self,
        status: int,
        title: str,
        description: str | None = None,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        link: Mapping[str, str] | None = None,
        index: int | None = None,
        document: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.description = description
        self.headers = tuple(headers)
        self.link = link
        self.index = index
        self.document = document


def bad_body(description: str) -> Refused:
    """The error of a document that is not what the action takes."""
    return Refused(400, "Invalid request body", description)


class Result(NamedTuple):
    """What an action answers: a status, a document and the headers that are not about it.

    A document that is bytes goes out as it is; None is for no document. `undo` takes back what was
    done for a client that has gone before it was answered. A `stream` writes the body instead; it
    is always called, and cancelled where the server can't wait for it.
    """

    status: int
    document: Any = None
    headers: Headers = ()
    media_type: bytes = b"application/json"
    undo: Callable[[], Awaitable[object]] | None = None
    stream: Stream | None = None

    def text(self) -> bytes:
        """The document as it is sent; non-ASCII stays unescaped."""
        document = self.document
        if document is None:
            return b""
        return document if isinstance(document, bytes) else orjson.dumps(document)


NO_CONTENT = Result(204)


def warning(*texts: str | None) -> Headers:
    """Return the header that tells a client what was done otherwise than it may think, if any."""
    warnings = " ".join(text for text in texts if text is not None)
    return ((b"zaqar-lite-warning", warnings.encode("ascii", "replace")),) if warnings else ()


class Call:
    """A call of an action: who calls, for what, and with which parameters and document.

    `headers` has lower-case names; of a repeated header the last value holds. `path_values` are
    the variable segments of the path, in order; `size` is how many bytes the document has; `route`
    is the name of the route that answers it; `waits` how many seconds it may wait for a message.
    `principal` is who sent it: whoever its headers name where nobody authenticates; with
    `signed_query` its signature came in the query. If the audit trail is on, `record_act` is called
    with the result before the answer leaves; `address` is where the call came from, for that. `end`
    ends the stream that answers it. `listener` is who subscribes if the document names no
    subscriber: the connection itself.

    All attributes are slots, which Python finds faster than entries of a dictionary in each
    instance: with those, a list of messages took 3 us more.
    """

    __slots__ = (
        *("__weakref__", "_parameters", "address", "client_id", "document", "end", "headers"),
        *("listener", "method", "path", "path_values", "principal", "project", "query_string"),
        *("record_act", "request_id", "route", "signed_query", "size", "waits"),
    )

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.query_string = self.document = b""
        self.path_values: tuple[str, ...] = ()
        self.request_id = self.project = self.client_id = self.route = ""
        self.address = self.listener = ""
        self.size = self.waits = 0
        self.signed_query = False
        self.record_act: Callable[[Result], None] | None = None
        self.end: Callable[[], None] | None = None
        self.principal: Principal = TRUSTED
        self._parameters: dict[str, list[str]] | None = None

    @property
    def parameters(self) -> dict[str, list[str]]:
        """All parameters, each with its values in order.

        Raises:
            Refused: 400, there are too many.
        """
        if self._parameters is None:
            self._parameters = self._read_parameters()
        return self._parameters

    def _read_parameters(self) -> dict[str, list[str]]:
        return {}

    async def read(self) -> bytes:
        """Read the document.

        Raises:
            Refused: 400, there is no body, or less of it than was announced.
        """
        if not self.document:
            raise bad_body("The request needs a body: a JSON document.")
        return self.document

    def tells_gone(self, _: "asyncio.Future[None]") -> bool:
        """Whether the future will be done once the client has gone; if not, await `gone`."""
        return False

    async def gone(self) -> None:
        """Wait until the client has gone."""
        await asyncio.get_running_loop().create_future()

    @property
    def queue(self) -> QueueRef:
        """The queue, or the topic, that the path names."""
        if self.path.startswith(TOPICS):
            return topic_ref(self.project, self.path_values[0])
        return QueueRef(self.project, self.path_values[0])

    def text(self, name: str) -> str | None:
        """The last value of a parameter."""
        values = (self._parameters or self.parameters).get(name)
        return values[-1] if values else None

    def whole(self, name: str, default: int) -> int:
        """The last value of a parameter as an integer.

        Raises:
            Refused: 400, it is not one.
        """
        values = (self._parameters or self.parameters).get(name)
        if not values:
            return default
        value = values[-1]
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
            raise _invalid(name, "The value must be an integer.")
        return int(value)

    def limit(self, default: int, most: int) -> int:
        """How many entries a page shall have.

        Raises:
            Invalid: out of range.
        """
        limit = self.whole("limit", default)
        check_limit(limit, most)
        return limit

    def flag(self, name: str) -> bool:
        """The last value of a parameter as a boolean; False when it is absent.

        Raises:
            Refused: 400, it is not one of the words for true and false.
        """
        values = (self._parameters or self.parameters).get(name)
        if not values or values[-1] in _FALSE:
            return False
        if values[-1] in _TRUE:
            return True
        raise _invalid(name, "The value of the parameter must be 'true' or 'false'.")


Action = Callable[[Call], Awaitable[Result]]


def _invalid(name: str, why: str) -> Refused:
    return Refused(400, "Invalid parameter", f'The "{name}" parameter is invalid. {why}')
