"""WebSocket connections: who may open one, who authenticates on it, and an answer to each frame."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, Protocol

from zaqar_lite.api.authentication import RequestAuthentication, TrustedProxies
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.errors import to_response
from zaqar_lite.api.request import (
    INVALID_REQUEST,
    SIGNATURE,
    Refused,
    Request,
    Response,
    do_nothing,
)
from zaqar_lite.api.routes import RouteTree
from zaqar_lite.api.websocket.actions import ServedAction, served_actions
from zaqar_lite.api.websocket.frames import (
    NO_SCHEMA,
    NOT_AUTHENTIFIED,
    UNREAD,
    Answer,
    Frame,
    Unreadable,
    error,
    notification,
    read,
    refused,
    write,
)
from zaqar_lite.domain.errors import Denied, ZaqarLiteError
from zaqar_lite.domain.identity import Principal
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.delivery.internal_targets import ConnectedSubscribers
from zaqar_lite.service.identity.authentication import Revalidation
from zaqar_lite.service.quotas.concurrency_limits import ConnectionLimits, Link
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions

logger = logging.getLogger(__name__)
EXPIRED = 4003
"""The code of a close because the login has expired, or was revoked."""
_AUTHENTICATE = "authenticate"
_PROOFS = ("X-Auth-Token", "Authorization", "X-Service-Token")
_SIGNED = ("URL-Signature", "URL-Expires", "URL-Methods", "URL-Paths")
_PASSED = ("Client-ID", "X-Project-ID", "Idempotency-Key")
_NO_SUCH_PLACE = {"title": "404 Not Found"}
"""What a signed URL that does not fit is answered."""
_ON_MESSAGES = "message_"
"""What the actions begin with that a signed URL admits."""
_CREATED = 201
_PORT = re.compile(r":[0-9]*\Z")


class Socket(Link, Protocol):
    """A client's connection, of which a conversation needs this."""

    address: str
    """Where it comes from."""
    peer_names: frozenset[str]
    """The names in the certificate that the client has shown."""

    def send(self, data: bytes, *, binary: bool) -> bool:
        """Send a frame; tell whether it went out: not where the connection has ended."""

    def close(self, code: int, reason: str) -> None:
        """End the connection behind what was sent."""

    def close_at(self, seconds: float | None, code: int, reason: str) -> None:
        """Close the connection in `seconds`, or never; this replaces an earlier time."""


class Conversation:
    """Answer the frames of one socket, each as the request that it stands for.

    `project` is the only one that the socket may name, where a gateway said so.
    """

    def __init__(self, host: "SocketHost", socket: Socket, project: str | None) -> None:
        self._host = host
        self._socket = socket
        self._project = project
        self._proof: dict[bytes, bytes] = {}
        self._expires_at: int | None = None
        self._release: Callable[[], object] = do_nothing
        self._listeners: dict[bool, str] = {}
        self._made: dict[tuple[QueueRef, str], str] = {}
        """The subscriptions whose subscriber is the connection: one a queue, by its form."""

    @property
    def is_known(self) -> bool:
        """Whether the client has authenticated, or need not."""
        return bool(self._proof) or self._host.authentication is None

    def refuse_frame(self, size: int, most: int, *, binary: bool) -> None:
        """Answer a frame that was passed over since it has more than `most` bytes."""
        answer = refused(400, f"The frame has {size} bytes; {most} are allowed.")
        self._send(UNREAD, answer, binary=binary)

    async def answer_frame(self, data: bytes, *, binary: bool) -> None:
        """Answer a frame."""
        if self._expires_at is not None and self._left() <= 0:
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
        if not self._send(echo, answer, binary=binary) and answer.take_back is not None:
            await answer.take_back()

    def _send(self, echo: Mapping[str, Any], answer: Answer, *, binary: bool) -> bool:
        """Send an answer; tell whether it went out."""
        shown = {"request": echo, "body": answer.body, "headers": {"status": answer.status}}
        return self._socket.send(_written(shown, binary=binary), binary=binary)

    async def end(self) -> None:
        """End the subscriptions of the connection, which has gone."""
        self._release()
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            self._host.connected_subscribers.remove(listener)
        made, self._made = self._made, {}
        for (queue, _), subscription_id in made.items():
            try:
                await self._host.subscriptions.delete(queue, subscription_id)
            except ZaqarLiteError as exc:  # it expires
                logger.warning("subscription %s of a socket is left: %s", subscription_id, exc)

    def _left(self) -> float:
        """How many seconds the login is still good for."""
        now = self._host.subscriptions.clock.now_ms()
        return max(0, (self._expires_at or now) - now) / 1000

    async def _authenticate(self, frame: Frame) -> Answer:
        """Check a login; later frames are asked on its behalf."""
        given = frame.headers
        if not _are_texts(given, (*_PROOFS, "X-Project-ID")):
            return NO_SCHEMA
        proof = {name.lower().encode(): _header(given[name]) for name in _PROOFS if name in given}
        if not proof:
            return NO_SCHEMA
        host, expires_at = self._host, None
        try:
            if host.authentication is not None:
                principal = await host.authentication.identify(proof, self._socket.address)
                project = _project_of(principal, given.get("X-Project-ID"))
                if project is not None:
                    await host.connection_limits.serve(self._socket, project)
                expires_at = principal.expires_at
        except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
            response = to_response(exc, invalid_title=INVALID_REQUEST, request_id="authenticate")
            return refused(response.status, "Authentication failed.")
        self._proof, self._expires_at = proof, expires_at
        self._release()
        if not self._socket.lost:  # or it would be held for ever
            close = partial(self._socket.close, EXPIRED, "Authentication revoked.")
            self._release = host.revalidation.hold(partial(self._still_opens, proof), close)
        left = None if expires_at is None else self._left()
        self._socket.close_at(left, EXPIRED, "Authentication expired.")
        return Answer(200, {"message": "Authentified."})

    async def _still_opens(self, proof: dict[bytes, bytes]) -> bool:
        """Whether the credential of a login still lets somebody in."""
        known = self._host.authentication
        return known is None or await known.still_knows(proof) is not None

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
        if headers is None or not isinstance(body, dict) or served.is_malformed(body):
            return NO_SCHEMA
        if not self._may_ask(served, headers):
            return NOT_AUTHENTIFIED
        return await self._perform(served, frame, headers)

    def _may_ask(self, served: ServedAction, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the client is known, and may name the project that the frame names."""
        project = headers.get(b"x-project-id")
        if self._project is not None and project != self._project.encode():
            return False
        if SIGNATURE in headers:
            return served.declared.name.startswith(_ON_MESSAGES)
        return self.is_known

    def _headers(self, frame: Frame) -> dict[bytes, bytes] | None:
        """The request's headers; None if the frame lacks one or has one of the wrong type.

        After a login of one project a frame need not name the project.
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

    async def _perform(
        self, served: ServedAction, frame: Frame, headers: dict[bytes, bytes]
    ) -> Answer:
        signed = SIGNATURE in headers
        request = served.request(frame, headers)
        if served.declared.listens and (frame.body or {}).get("subscriber") is None:
            request.listener = self._listener(binary=frame.binary)
        request.address, request.link = self._socket.address, self._socket
        response = await self._host.answer(request)
        if request.listener and response.status == _CREATED:
            made_at = (request.queue, request.listener)
            self._made[made_at] = response.document["subscription_id"]
            if self._socket.lost:
                await self.end()
        if response.status == 401:
            self._proof = {}
            return NOT_AUTHENTIFIED
        if signed and response.status == 404 and response.document == _NO_SUCH_PLACE:
            return NOT_AUTHENTIFIED
        given = frame.body or {}
        status = (served.declared.statuses or {}).get(response.status)
        if response.status < 400 or status is not None:
            shown = served.declared.show(given, response)
            return Answer(status or response.status, shown, response.take_back)
        return error(given, response, served.declared.missing)

    def _listener(self, *, binary: bool) -> str:
        """The connection's name as a subscriber, which is notified in frames of this form."""
        if binary not in self._listeners:

            def push(text: bytes) -> bool:
                return self._socket.send(notification(text, binary=binary), binary=binary)

            self._listeners[binary] = self._host.connected_subscribers.add(push)
        return self._listeners[binary]


@dataclass(eq=False, repr=False)
class SocketHost:
    """What conversations are had with: it opens them, and answers the requests of frames.

    `origins` are the other hosts whose pages may open a socket if nobody authenticates; None means
    any host.
    """

    tree: InitVar[RouteTree]
    answer: Callable[[Request], Awaitable[Response]]
    checks: Checks
    authentication: RequestAuthentication | None
    proxies: TrustedProxies | None
    connection_limits: ConnectionLimits
    revalidation: Revalidation
    origins: frozenset[str] | None
    subscriptions: Subscriptions
    connected_subscribers: ConnectedSubscribers

    def __post_init__(self, tree: RouteTree) -> None:
        self.actions: Mapping[str, ServedAction | None] = served_actions(tree)

    def open(self, socket: Socket, request: Request) -> Conversation | Response:
        """Open a conversation, or answer why not; `request` is that of HTTP, which began it."""
        request.address, request.peer_names = socket.address, socket.peer_names
        try:
            self.checks.check_headers(request)
            project = None
            if self.authentication is None:
                self._check_origin(request)
            if self.proxies is not None:
                self.proxies.check(request)
                project = self._project(request)
        except (Refused, Denied) as exc:
            return to_response(exc, invalid_title=INVALID_REQUEST, request_id="")
        return Conversation(self, socket, project)

    def _check_origin(self, request: Request) -> None:
        """Refuse a page of another site: browsers open sockets across sites without asking.

        Over HTTP such a page can't send the headers that every request needs.
        """
        origin = request.headers.get(b"origin")
        if origin is None or self.origins is None:
            return
        place = origin.decode("latin-1").lower().partition("://")[2]
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        name = _PORT.sub("", place).strip("[]")
        if place and (place == host or name in self.origins):
            return
        raise Refused(
            403,
            "Not authorized",
            "A page of another site may not open a WebSocket here: add its host to the setting "
            "allowed_hosts, or have clients authenticate.",
        )

    def _project(self, request: Request) -> str:
        """The project that a gateway names in the handshake."""
        project = request.headers.get(b"x-project-id")
        if not project:
            raise Refused(
                400, "Project-Id Missing", "A gateway names the project of a WebSocket it opens."
            )
        return project.decode("utf-8", "replace")


def _written(shown: dict[str, Any], *, binary: bool) -> bytes:
    """Write an answer; leave out the request that it repeats if that is nested too deeply.

    If the result itself is nested too deeply, the answer is a 500, as over HTTP.
    """
    unread = {**shown, "request": UNREAD}
    for one in (shown, unread):
        with suppress(TypeError, RecursionError):
            return write(one, binary=binary)
    failed = {"body": {"error": "Unexpected error."}, "headers": {"status": 500}}
    return write({**unread, **failed}, binary=binary)


def _are_texts(headers: Any, names: tuple[str, ...]) -> bool:  # noqa: ANN401 - any JSON
    """Tell whether these are headers, and each of `names` that is there is a text."""
    return isinstance(headers, dict) and all(
        isinstance(headers.get(name, ""), str) for name in names
    )


def _header(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _project_of(principal: Principal, project: str | None) -> str | None:
    """The project that a principal works in.

    Raises:
        Denied: it names another one.
    """
    if principal.project is None:
        return project
    if project not in (None, principal.project):
        raise Denied("it is of another project")
    return principal.project
