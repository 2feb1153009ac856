"""The WebSocket side of the application: who may open one, and what its frames are asked."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from zaqar_lite.api.checks import Checks
from zaqar_lite.api.dispatch import Dispatcher
from zaqar_lite.api.errors import to_response
from zaqar_lite.api.gate import Gate
from zaqar_lite.api.gateways import Gateways
from zaqar_lite.api.http import HttpError, Request, Response, Scope
from zaqar_lite.api.routes import INVALID_REQUEST
from zaqar_lite.api.websocket.conversation import (
    EXPIRED,
    Client,
    Conversation,
    Made,
    Push,
    Socket,
)
from zaqar_lite.api.websocket.handlers import ActionHandlers
from zaqar_lite.api.websocket.making import Served, served_actions
from zaqar_lite.domain.errors import Denied, ZaqarLiteError
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.connected import Connected
from zaqar_lite.service.identity.standing import Standing
from zaqar_lite.service.listeners import Listeners
from zaqar_lite.service.subscriptions import Subscriptions

logger = logging.getLogger(__name__)
Headers = Sequence[tuple[bytes, bytes]]


class SocketHost:
    """Open conversations, and have what they ask for done.

    `origins` are hosts whose pages may open a socket where nobody authenticates, beside those of
    this server; None means any.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        checks: Checks,
        handlers: ActionHandlers,
        *,
        gate: Gate | None,
        gateways: Gateways | None,
        connected: Connected,
        standing: Standing,
        origins: frozenset[str] | None,
        subscriptions: Subscriptions,
        listeners: Listeners,
    ) -> None:
        self._dispatcher = dispatcher
        self._checks = checks
        self._gate = gate
        self._gateways = gateways
        self._connected = connected
        self._standing = standing
        self._origins = origins
        self._subscriptions = subscriptions
        self._listeners = listeners
        self.actions: Mapping[str, Served | None] = served_actions(dispatcher.tree, handlers)

    def now_ms(self) -> int:
        """The time, in milliseconds."""
        return self._subscriptions.now_ms()

    @property
    def authenticates(self) -> bool:
        """Whether who speaks must prove who it is."""
        return self._gate is not None

    def open(self, socket: Socket, scope: Scope) -> Conversation | Response:
        """Open a conversation, or answer why not; `scope` is that of the HTTP request."""
        sent: Headers = scope["headers"]
        request = Request("GET", scope["path"], b"", dict(sent), _nothing)
        try:
            self._checks.check_headers(request, sent)
            project = None
            if self._gate is None:
                self._check_origin(request)
            if self._gateways is not None:
                self._gateways.check(request, scope)
                project = self._project(request)
        except (HttpError, Denied) as exc:
            return to_response(exc, invalid_title=INVALID_REQUEST, request_id="")
        return Conversation(self, socket, scope.get("client"), project)

    async def identify(
        self, proof: dict[bytes, bytes], project: str | None, client: Client, socket: Socket
    ) -> tuple[int, int | None]:
        """Find out who proves who it is: a status, and when that ends, in milliseconds."""
        if self._gate is None:
            return 200, None
        try:
            principal = await self._gate.identify(proof, client[0] if client else "")
            own = _project_of(principal, project)
            if own is not None and self._connected.is_on:
                await self._connected.serve(socket, own)
        except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
            response = to_response(exc, invalid_title=INVALID_REQUEST, request_id="authenticate")
            return response.status, None
        return 200, principal.expires_at

    def hold(self, proof: dict[bytes, bytes], socket: Socket) -> Callable[[], None]:
        """Close a connection soon after its proof counts for nothing; answer what lets go."""
        gate = self._gate

        async def may() -> bool:
            return gate is None or await gate.still_knows(proof) is not None

        return self._standing.hold(may, partial(socket.close, EXPIRED, "Authentication revoked."))

    async def perform(
        self, served: Served, request: Request, client: Client, socket: Socket
    ) -> Response:
        """Have an action done by its route."""
        scope: Scope = {"headers": tuple(request.headers.items()), "client": client}
        return await self._dispatcher.perform(request, scope, served.node, served.handler, socket)

    def listen(self, push: Push) -> str:
        """Let a connection be a subscriber; answer its name."""
        return self._listeners.add(push)

    async def end(self, listener: str, made: Sequence[Made]) -> None:
        """End a listener and the subscriptions that it made; what can't be ended now expires."""
        self._listeners.remove(listener)
        for one in made:
            try:
                await self._subscriptions.delete(one.queue, one.id)
            except ZaqarLiteError as exc:
                logger.warning("subscription %s of a socket is left: %s", one.id, exc)

    def _check_origin(self, request: Request) -> None:
        """Refuse a page of another site: its browser asks nobody before it opens a socket.

        Over HTTP a page can't send the headers that every request needs.
        """
        origin = request.headers.get(b"origin")
        if origin is None or self._origins is None:
            return
        place = urlsplit(origin.decode("latin-1")).netloc.lower()
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        if place and (place == host or place.partition(":")[0] in self._origins):
            return
        raise HttpError(
            403,
            "Not authorized",
            "A page of another site may not open a WebSocket here: add its host to the setting "
            "allowed_hosts, or have clients authenticate.",
        )

    def _project(self, request: Request) -> str:
        """The project that a gateway has found out."""
        project = request.headers.get(b"x-project-id")
        if not project:
            raise HttpError(
                400, "Project-Id Missing", "A gateway names the project of a WebSocket it opens."
            )
        return project.decode("utf-8", "replace")


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


async def _nothing() -> Scope:
    """Give no body."""
    return {"type": "http.request", "body": b"", "more_body": False}
