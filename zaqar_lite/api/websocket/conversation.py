"""What is said on one WebSocket: who speaks, and frame by frame what it asks for."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import orjson

from zaqar_lite.api.http import Request, Response, Scope
from zaqar_lite.api.websocket.encoding import UNREAD, Frame, Unreadable, read, told, write
from zaqar_lite.api.websocket.making import Served, make_request
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.connected import Link

EXPIRED = 4003
"""The code of a close because the login has expired, or was revoked."""
_AUTHENTICATE = "authenticate"
_PROOFS = ("X-Auth-Token", "Authorization", "X-Service-Token")
_SIGNED = ("URL-Signature", "URL-Expires", "URL-Methods", "URL-Paths")
_PASSED = ("Client-ID", "X-Project-ID", "Idempotency-Key")
_NO_SUCH_PLACE = b'{"title":"404 Not Found"}'
"""What a signed URL that does not fit is answered."""
_CREATED = 201
Push = Callable[[bytes], bool]
"""Sends a document on a connection; False where that has ended."""


class Socket(Link, Protocol):
    """A client's connection, as a conversation sees it."""

    def send(self, data: bytes, *, binary: bool) -> bool:
        """Send a frame; tell whether it went out: not where the connection has ended."""

    def close(self, code: int, reason: str) -> None:
        """End the connection behind what was sent."""

    def close_at(self, seconds: float | None, code: int, reason: str) -> None:
        """End the connection in that time, or never, instead of at the time named before."""


Client = tuple[str, int] | None
"""The address that a socket comes from."""


class Made(NamedTuple):
    """A subscription that a connection has made for itself."""

    queue: QueueRef
    id: str


class Ear(NamedTuple):
    """A connection as a subscriber: its name, and the subscriptions that it made."""

    listener: str
    made: list[Made]


class Host(Protocol):
    """What a conversation asks of the application."""

    actions: Mapping[str, Served | None]
    """Every action by its name; None for one that this server has not."""

    @property
    def authenticates(self) -> bool:
        """Whether who speaks must prove who it is."""

    def now_ms(self) -> int:
        """The time, in milliseconds."""

    async def identify(
        self, proof: dict[bytes, bytes], project: str | None, client: Client, socket: Socket
    ) -> tuple[int, int | None]:
        """Find out who proves who it is: a status, and when that ends, in milliseconds."""

    def hold(self, proof: dict[bytes, bytes], socket: Socket) -> Callable[[], None]:
        """Close a connection soon after its proof counts for nothing; answer what lets go."""

    async def perform(
        self, served: Served, request: Request, client: Client, socket: Socket
    ) -> Response:
        """Have an action done by its route."""

    def listen(self, push: Push) -> str:
        """Let a connection be a subscriber; answer its name."""

    async def end(self, listener: str, made: Sequence[Made]) -> None:
        """End a listener and the subscriptions that it made."""


class Answer(NamedTuple):
    """What a frame is answered."""

    status: int
    body: Any


def refused(status: int, error: str) -> Answer:
    """Refuse a frame that became no request."""
    return Answer(status, {"error": error})


NOT_AUTHENTIFIED = refused(403, "Not authentified.")
_NO_SCHEMA = refused(400, "Schema validation failed.")


class Conversation:
    """Answer the frames of one socket, each as the request that it stands for.

    `project` is the only one that the socket may name, where a gateway said so.
    """

    def __init__(
        self,
        host: Host,
        socket: Socket,
        client: Client,
        project: str | None,
    ) -> None:
        self._host = host
        self._socket = socket
        self._client = client
        self._project = project
        self._proof: dict[bytes, bytes] = {}
        self._expires_at: int | None = None
        self._release: Callable[[], None] = _nothing
        self._ears: dict[bool, Ear] = {}

    @property
    def is_known(self) -> bool:
        """Whether it is known who speaks, where that is asked for."""
        return bool(self._proof) or not self._host.authenticates

    async def hear(self, data: bytes, *, binary: bool) -> None:
        """Answer a frame."""
        if self._expires_at is not None and self._host.now_ms() >= self._expires_at:
            self._socket.close(EXPIRED, "Authentication expired.")
            return
        echo: Mapping[str, Any] = UNREAD
        try:
            frame = read(data, binary=binary)
            if frame.action == _AUTHENTICATE:
                echo = {**UNREAD, "action": _AUTHENTICATE}
                answer = await self._authenticate(frame)
            else:
                echo = frame.echo()
                answer = await self._answer(frame)
        except Unreadable as exc:
            answer = refused(400, str(exc))
        shown = {"request": echo, "body": answer.body, "headers": {"status": answer.status}}
        try:
            written = write(shown, binary=binary)
        except (TypeError, RecursionError):  # what it repeats is nested too deeply to be written
            written = write({**shown, "request": UNREAD}, binary=binary)
        self._socket.send(written, binary=binary)

    async def end(self) -> None:
        """End the subscriptions of the connection, which has gone."""
        self._release()
        ears, self._ears = self._ears, {}
        for ear in ears.values():
            await self._host.end(ear.listener, ear.made)

    async def _authenticate(self, frame: Frame) -> Answer:
        """Find out who speaks from now on."""
        given = frame.headers
        if not _are_texts(given, (*_PROOFS, "X-Project-ID")):
            return _NO_SCHEMA
        proof = {name.lower().encode(): _header(given[name]) for name in _PROOFS if name in given}
        if not proof:
            return _NO_SCHEMA
        status, expires_at = await self._host.identify(
            proof, given.get("X-Project-ID"), self._client, self._socket
        )
        if status != 200:
            return refused(status, "Authentication failed.")
        self._proof, self._expires_at = proof, expires_at
        self._release()
        if not self._socket.lost:  # or it would be held for ever
            self._release = self._host.hold(proof, self._socket)
        left = None if expires_at is None else max(0, expires_at - self._host.now_ms()) / 1000
        self._socket.close_at(left, EXPIRED, "Authentication expired.")
        return Answer(200, {"message": "Authentified."})

    async def _answer(self, frame: Frame) -> Answer:
        name = frame.action
        known = self._host.actions
        if not isinstance(name, str) or name not in known:
            return refused(400, f"{name} is not a valid action")
        served = known[name]
        if served is None:
            return Answer(404, {"exception": "This server has no such resource.", "error": None})
        headers = self._headers(frame)
        body = {} if frame.body is None else frame.body
        if headers is None or not isinstance(body, dict) or served.action.misfits(body):
            return _NO_SCHEMA
        if not self._may_ask(served, headers):
            return NOT_AUTHENTIFIED
        return await self._perform(served, frame, headers)

    def _may_ask(self, served: Served, headers: Mapping[bytes, bytes]) -> bool:
        """Whether somebody known asks, in a project that this connection may name."""
        project = headers.get(b"x-project-id")
        if self._project is not None and project != self._project.encode():
            return False
        return served.action.signable if b"url-signature" in headers else self.is_known

    def _headers(self, frame: Frame) -> dict[bytes, bytes] | None:
        """The request's headers; None where the frame lacks one or has one of another kind.

        Whose login says which project it is of need not name it.
        """
        given = frame.headers
        if not _are_texts(given, _PASSED) or "Client-ID" not in given:
            return None
        if "X-Project-ID" not in given and not self._proof:
            return None
        headers = {name.lower().encode(): _header(given[name]) for name in _PASSED if name in given}
        if "URL-Signature" not in given:
            return {**headers, **self._proof}
        for name in _SIGNED:
            value = given.get(name, "")
            if isinstance(value, list) and all(isinstance(one, str) for one in value):
                value = ",".join(value)
            if not isinstance(value, str):
                return None
            headers[name.lower().encode()] = _header(value)
        return headers

    async def _perform(self, served: Served, frame: Frame, headers: dict[bytes, bytes]) -> Answer:
        signed = b"url-signature" in headers
        request = make_request(served, frame, headers)
        if served.action.listens and (frame.body or {}).get("subscriber") is None:
            request.listener = self._ear(binary=frame.binary).listener
        response = await self._host.perform(served, request, self._client, self._socket)
        if self._socket.lost and response.undo is not None:
            with suppress(Unavailable):  # then its lease lapses
                await response.undo()
        if request.listener and response.status == _CREATED:
            known = orjson.loads(response.body)["subscription_id"]
            made = Made(QueueRef(request.project, request.path_values[0]), known)
            self._ear(binary=frame.binary).made.append(made)
            if self._socket.lost:
                await self.end()
        if response.status == 401:
            self._proof = {}
            return NOT_AUTHENTIFIED
        if signed and response.status == 404 and response.body == _NO_SUCH_PLACE:
            return NOT_AUTHENTIFIED
        given = frame.body or {}
        status = (served.action.statuses or {}).get(response.status)
        if response.status < 400 or status is not None:
            return Answer(status or response.status, served.action.show(given, response))
        return _error(served, given, response)

    def _ear(self, *, binary: bool) -> Ear:
        """What this connection hears by, in frames of this form."""
        if binary not in self._ears:

            def push(text: bytes) -> bool:
                return self._socket.send(told(text, binary=binary), binary=binary)

            self._ears[binary] = Ear(self._host.listen(push), [])
        return self._ears[binary]


class Sockets(Protocol):
    """Who opens conversations."""

    def open(self, socket: Socket, scope: Scope) -> Conversation | Response:
        """Open a conversation, or answer why not; `scope` is that of the HTTP request."""


def _nothing() -> None:
    """Hold nothing."""


def _error(served: Served, given: Mapping[str, Any], response: Response) -> Answer:
    """Show an error in upstream's two fields."""
    document = orjson.loads(response.body) if response.body else {}
    title = document.get("title")
    exception = document.get("description") or title or ""
    error = None if response.status == 400 else title
    if title == "Invalid request body":
        exception = f"Bad request. {_without_place(exception)}"
    if response.status == 404 and served.action.missing:
        error = served.action.missing.format_map(given)
    if response.status == 500:
        error = "Unexpected error."
    return Answer(response.status, {"exception": exception, "error": error})


def _without_place(text: str) -> str:
    """A field's error without the index of its message, which upstream does not tell."""
    sentence, found, index = text.rpartition(" (message ")
    return f"{sentence}." if found and index.removesuffix(").").isdigit() else text


def _are_texts(headers: Any, names: tuple[str, ...]) -> bool:  # noqa: ANN401 - any JSON
    """Tell whether these are headers, and those of the names texts where they are there."""
    return isinstance(headers, dict) and all(
        isinstance(headers.get(name, ""), str) for name in names
    )


def _header(text: str) -> bytes:
    return text.encode("utf-8", "replace")
