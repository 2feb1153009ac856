"""A request, its response, and the routes between them, whichever transport brings the request.

An action takes a `Request` and gives back a `Response`, or raises. HTTP and WebSocket make requests
of what they read, and write responses in their own form; both pass the same checks on the way.
"""

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, unquote_plus
from uuid import uuid4

import orjson
from msgspec import Struct

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.identity import TRUSTED, Access, Principal, Verb
from zaqar_lite.domain.limits import DEFAULT_LIMIT, Limits, page_limit
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.quotas.concurrency_limits import Link
from zaqar_lite.service.quotas.rate_limits import MANAGE, READ, WRITE


@dataclass(eq=False)
class Refused(Exception):
    """An answer that is an error: status, title and description of Zaqar's error form.

    `document` is the body of one that has another form.
    """

    status: int
    title: str
    description: str | None = None
    _: KW_ONLY
    headers: Sequence[tuple[bytes, bytes]] = ()
    link: Mapping[str, str] | None = None
    index: int | None = None
    document: Mapping[str, object] | None = None


def bad_body(description: str) -> Refused:
    """The error of a document that is not what the action takes."""
    return Refused(400, "Invalid request body", description)


VARIABLE = re.compile(r"{(\w+)}")
"""A variable in the template of a path."""
_MAX_PARAMETERS = 256
_LISTS_OF_IDS = {"ids", "claim_ids"}


def parse_query(query_string: bytes) -> dict[str, list[str]]:
    """All parameters of a query string, by upstream's rules (zaqar-behaviour 1.4).

    Those with empty values are dropped; values split at commas. Lists of ids split at encoded
    commas too: many libraries write a comma of a value as %2C.

    Raises:
        Refused: 400, there are more than 256; to leave some out would change what is asked for.
    """
    if not query_string:
        return {}
    found: dict[str, list[str]] = {}
    pairs = query_string.decode("latin-1").split("&", _MAX_PARAMETERS)
    if len(pairs) > _MAX_PARAMETERS:
        raise Refused(
            400, "Invalid parameter", f"A request may have at most {_MAX_PARAMETERS} parameters."
        )
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in _LISTS_OF_IDS:
            values = [part for part in _decode(value).split(",") if part]
        else:
            values = [_decode(part) for part in value.split(",") if part]
        if values:
            found.setdefault(_decode(name), []).extend(values)
    return found


def _decode(part: str) -> str:
    if "%" not in part and "+" not in part:
        return part
    return unquote_plus(part)


TOPICS = "/v2/topics/"
"""What the path of a topic begins with."""
JSON = b"application/json"
D = TypeVar("D", int, None)
Headers = tuple[tuple[bytes, bytes], ...]
Write = Callable[[bytes], Awaitable[None]]
"""Send a part of a body; it returns once the connection has room for more."""
Stream = Callable[[Write], Coroutine[Any, Any, None]]
"""Write a body part by part, and end with it."""
_TRUE = frozenset(("true", "True", "t", "yes", "y", "1", "on"))
_FALSE = frozenset(("false", "False", "f", "no", "n", "0", "off"))
_MAX_DIGITS = 1_000
INVALID_REQUEST = "Invalid API request"
FIRST_DIGITS = f"req-{uuid4()}"[:-12]
"""What the ids of this process's requests begin with; the twelve digits of a number follow."""
SIGNATURE = b"url-signature"
"""The header of a request that a pre-signed URL permits."""
NAMING = ("/v2/queues/", "/v2/topics/")
"""What the paths begin with that name a queue or a topic."""
SMALL_BODY = 4_096
"""Bytes: what a document that is neither messages nor metadata may have."""
_NO_QUEUE = QueueRef("", "")
_GZIP = 16 + zlib.MAX_WBITS
LONGEST_LENGTH = 18
"""Digits of a Content-Length."""


class Response(Struct, eq=False):
    """What an action answers: a status, a document and the headers that are not about it.

    A document that is bytes goes out as it is; None is for no document. `undo` takes back what was
    done for a client that has gone before it was answered. A `stream` writes the body instead; it
    is always called, and cancelled where the server can't wait for it.
    """

    status: int
    document: Any = None
    headers: Headers = ()
    media_type: bytes = JSON
    undo: Callable[[], Awaitable[object]] | None = None
    stream: Stream | None = None
    body: bytes = b""

    async def take_back(self) -> None:
        """Undo what was done for a client that has gone; if the store can't, its lease lapses."""
        if self.undo is not None:
            with suppress(Unavailable):
                await self.undo()

    def text(self) -> bytes:
        """The document as it is sent; non-ASCII stays unescaped."""
        document = self.document
        if document is None:
            return b""
        return document if type(document) is bytes else orjson.dumps(document)


NO_CONTENT = Response(204)


def warning(*texts: str | None) -> Headers:
    """Return the header that tells a client what was done otherwise than it may think, if any."""
    warnings = " ".join(text for text in texts if text is not None)
    return ((b"zaqar-lite-warning", warnings.encode("ascii", "replace")),) if warnings else ()


def do_nothing() -> None:
    """Do nothing, where something is called that need not do anything."""


class Source(Protocol):
    """The connection of a request whose body has not come whole, or whose client may go."""

    async def receive(self, request: "Request") -> bytes:
        """Wait for the whole body.

        Raises:
            Refused: it ends too early, or is larger than `request.most`.
        """

    def watch(self, gone: "asyncio.Future[None]") -> Callable[[], object]:
        """Let `gone` be done once the client has gone; call the answer to stop that."""


class Request(Struct, eq=False, weakref=True):
    """A request, whichever transport brought it: who asks, for what, with which document.

    A server keeps requests by the bytes of their heads, each without its document, and the next one
    with such a head is a copy. Once one was let in, what it was let in as is kept as well, which
    the head decides, given that its credential is still good: project, client, queue, parameters,
    principal, and the route, which answers a copy of at most `most` bytes without further checks.
    """

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: dict[bytes, bytes]
    """By lower-case names; of a repeated header the last value holds."""
    repeated: tuple[bytes, ...]
    """The names of the headers that were sent more than once."""
    keeps_alive: bool
    size: int
    """How many bytes the document has; -1 until a chunked one has come."""
    known: "Request | None" = None
    """The one that is kept by its head, which has None here itself."""
    at_once: bool = False
    """Whether it is probably answered without waiting."""
    reads_first: bool = False
    """Whether one with such a head has passed its checks, or is read before these: the next one is
    begun once its body has come."""
    dialect: "Dialect | None" = None
    """The protocol of one that was let in, which has more to ask of it."""
    credential: bytes = b""
    """The digest of the credential that it was let in by."""
    document: bytes = b""
    source: Source | None = None
    """Is asked for what has not come."""
    is_read: bool = False
    """Whether the whole body is `document`."""
    most: int = 0
    """How many bytes it may have."""
    path_values: tuple[str, ...] = ()
    """The variable segments of the path, in order."""
    queue: QueueRef = _NO_QUEUE
    """The queue or the topic that the path names, if it names one."""
    project: str = ""
    client_id: str = ""
    route: "Route | None" = None
    """Answers it."""
    waits: float = 0
    """How many seconds it may wait for a message, or for a refusal that is delayed."""
    number: int = 0
    """What its id ends with: another one for each request of the process."""
    address: str = ""
    """Where the client's connection comes from."""
    peer_names: frozenset[str] = frozenset()
    """The names in the certificate that the client showed."""
    is_secure: bool = False
    """Whether it came over TLS."""
    link: Link | None = None
    """The client's connection."""
    principal: Principal = TRUSTED
    """Who sent it: whoever its headers name where nobody authenticates."""
    signed_query: bool = False
    """Whether its signature came in the query."""
    identify_again: Callable[[], Awaitable[Principal | None]] | None = None
    """Finds out who sent it, where its headers do not tell: None if nobody is let in any more."""
    listener: str = ""
    """Who subscribes if the document names no subscriber: the connection itself."""
    checks: "tuple[Check, ...] | None" = None
    """What a frame of a WebSocket must pass; it has no path."""
    action: "Action | None" = None
    """What answers a frame."""
    given: dict[str, list[str]] | None = None
    """The parameters, once somebody asked for them."""

    def forget_admission(self) -> None:
        """Be as a request with a head that nothing was found out by."""
        self.route, self.is_read, self.principal = None, False, TRUSTED
        self.path_values, self.queue, self.project, self.client_id = (), _NO_QUEUE, "", ""

    @property
    def request_id(self) -> str:
        """Its id: `req-` and a UUID, as OpenStack writes it."""
        return f"{FIRST_DIGITS}{self.number:012x}"

    @property
    def is_signed(self) -> bool:
        """Whether it shows a signature, good or not; no credential counts beside one."""
        return SIGNATURE in self.headers

    @property
    def parameters(self) -> dict[str, list[str]]:
        """All parameters, each with its values in order.

        Raises:
            Refused: 400, there are too many.
        """
        if self.given is None:
            self.given = parse_query(self.query_string)
        return self.given

    async def read(self) -> bytes:
        """Wait until the body has come, and decompress it; `size` is its length from then on.

        Raises:
            Refused: 400, less has come than was announced, or none that could be decompressed; or
                it is larger than the route allows.
        """
        if self.is_read:
            return self.document
        if self.source is not None and len(self.document) != self.size:
            self.document = await self.source.receive(self)
            self.size = len(self.document)
        self.is_read = True
        if self.document and self.headers.get(b"content-encoding") == b"gzip":
            self.document = _decompressed(self.document, self.most)
            self.size = len(self.document)
        if self.size > self.most:
            self.check_size(self.size)
        return self.document

    def check_size(self, size: int) -> None:
        """Refuse a body of `size` bytes.

        Raises:
            Refused: it is larger than the route allows.
        """
        if size <= self.most:
            return
        description = f"The body has {size} bytes; {self.most} are allowed."
        title = None if self.route is None else self.route.too_large_title
        if title is None:
            raise Refused(413, "Request body too large", description)
        raise Refused(400, title, description)

    def text(self, name: str) -> str | None:
        """The last value of a parameter."""
        values = (self.given or self.parameters).get(name)
        return values[-1] if values else None

    def whole(self, name: str, default: D) -> int | D:
        """The last value of a parameter as an integer.

        Raises:
            Refused: 400, it is not one.
        """
        values = (self.given or self.parameters).get(name)
        if not values:
            return default
        value = values[-1]
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
            raise _invalid(name, "The value must be an integer.")
        return int(value)

    def limit(self, most: int, default: int = DEFAULT_LIMIT) -> int:
        """How many entries a page shall have.

        Raises:
            Invalid: out of range.
        """
        return page_limit(self.whole("limit", None), most, default)

    def flag(self, name: str) -> bool:
        """The last value of a parameter as a boolean; False when it is absent.

        Raises:
            Refused: 400, it is not one of the words for true and false.
        """
        values = (self.given or self.parameters).get(name)
        if not values or values[-1] in _FALSE:
            return False
        if values[-1] in _TRUE:
            return True
        raise _invalid(name, "The value of the parameter must be 'true' or 'false'.")


def request_of(
    method: str,
    raw_path: bytes,
    query_string: bytes,
    sent: Sequence[tuple[bytes, bytes]],
    *,
    path: str | None = None,
    keeps_alive: bool = True,
) -> Request:
    """Make a request of its head; `sent` are the headers, by lower-case names.

    The size is the length of the body that the head tells: -1 if it is chunked.
    """
    headers = dict(sent)
    repeated: tuple[bytes, ...] = ()
    if len(headers) != len(sent):  # there may be tens of thousands
        counts = Counter(name for name, _ in sent)
        repeated = tuple(name for name, count in counts.items() if count > 1)
    length = headers.get(b"content-length", b"0")
    size = int(length) if length.isdigit() and len(length) <= LONGEST_LENGTH else 0
    if b"transfer-encoding" in headers:
        size = -1
    path = unquote(raw_path.decode("ascii")) if path is None else path
    return Request(method, path, raw_path, query_string, headers, repeated, keeps_alive, size)


Action = Callable[[Request], Awaitable[Response]]
Check = Callable[[Request], Awaitable[object] | None]
"""Raises unless a request passes; what it answers, if anything, must be awaited."""
A = TypeVar("A", bound=Callable[..., Awaitable[Response]])


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header of a route, for its documentation."""

    name: str
    schema: str
    description: str
    place: str = "query"


async def _missing(request: Request) -> Response:
    raise NotImplementedError(request.path)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; above a method, that is its action.

    Its name is the method's, and its summary what the docstring says before the first semicolon.
    The home document shows all routes of one `rel` as one resource; it is the name unless given.
    `access` is what the policy asks of who calls it. `invalid_title` is the title of the errors
    that the domain calls Invalid. `statuses` are the answers that the route itself gives; those of
    the checks come on top, so do 503 of the store and 413 of a body. `body` names the schema of the
    request's document in `api/openapi.py`, `answer` that of what is answered, a parameter's
    `schema` one there too. A route that `needs_store` is 503 until the stores are open. A `plain`
    one is for tools: it needs no Client-ID and takes any Accept. One that `streams` answers with
    events, unless it answers an error. A `hot` one posts or reads messages: whatever it asks of the
    policy, the audit trail does not take it for a managing act. More than `largest_body`, or what
    `largest` says of the limits, is refused before it is read: with 413, or with 400 and
    `too_large_title` where upstream has that.
    """

    method: str
    template: str
    access: Access
    statuses: tuple[int, ...]
    parameters: tuple[Parameter, ...] = ()
    name: str = ""
    summary: str = ""
    rel: str = ""
    body: str | None = None
    answer: str | None = None
    hot: bool = False
    public: bool = False
    plain: bool = False
    streams: bool = False
    needs_store: bool = True
    invalid_title: str = INVALID_REQUEST
    largest_body: int = SMALL_BODY
    largest: Callable[[Limits], int] | None = None
    too_large_title: str | None = None
    action: Action = _missing

    def __call__(self, method: A) -> A:
        """Let a method be the action of this route."""
        summary = self.summary or (method.__doc__ or "").partition("\n")[0].partition(";")[0]
        name = self.name or method.__name__
        named = replace(self, name=name, rel=self.rel or name, summary=summary.removesuffix("."))
        vars(method)["routes"] = (named, *vars(method).get("routes", ()))
        return method

    @property
    def rate_kind(self) -> int | None:
        """Which rate of a project its requests count against; None without a verb.

        What only consumers may do in a route that others may use is reading too.
        """
        verb = self.access.verb
        if verb is None:
            return None
        if verb is Verb.SEND:
            return WRITE
        is_reading = verb in (Verb.READ, Verb.RECEIVE) or self.access.consuming
        return READ if is_reading else MANAGE

    @property
    def names_queue(self) -> bool:
        """Whether the first variable of its path is a queue or a topic."""
        return self.template.startswith(NAMING)


class Dialect(Protocol):
    """Another protocol than HTTP's way of Zaqar, with routes and a form of errors of its own.

    A `header` names the operation, and so the form of the document. The OpenAPI document shows
    all operations of a dialect as one, by its `name`.
    """

    name: str
    header: str
    media_type: str
    forms: dict[str, type[Struct]]
    """The forms of the documents, by what the header may say."""

    @property
    def routes(self) -> tuple[Route, ...]:
        """All of its routes; their templates are names, by which nobody finds them."""
        ...

    def speaks(self, request: Request) -> bool:
        """Tell whether a request is of this protocol, by its head."""
        ...

    def find(self, request: Request) -> Route:
        """The route of a request of this protocol; raises where there is none."""
        ...

    async def admit(self, request: Request) -> None:
        """Find out who sends a request that was read, and what it asks of which queue."""
        ...

    def answers_at_once(self, request: Request) -> bool | None:
        """Whether a request is probably answered without waiting; None if it is not of these."""
        ...

    def to_response(self, error: Exception, request: Request) -> Response:
        """Answer an error in the protocol's form."""
        ...


def _decompressed(data: bytes, most: int) -> bytes:
    """Decompress a body, of which no more than one byte above `most` is ever made."""
    decompressor = zlib.decompressobj(wbits=_GZIP)
    try:
        found = decompressor.decompress(data, most + 1)
    except zlib.error:
        raise bad_body("The body is not what its Content-Encoding says: gzip.") from None
    if len(found) <= most and not decompressor.eof:
        raise bad_body("The body ends within its gzip stream.")
    if decompressor.unused_data:
        raise bad_body("The body goes on behind the end of its gzip stream.")
    return found


def _invalid(name: str, why: str) -> Refused:
    return Refused(400, "Invalid parameter", f'The "{name}" parameter is invalid. {why}')
