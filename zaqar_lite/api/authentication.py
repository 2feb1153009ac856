"""Who sends a request, and whether it may do this: by a credential, a proxy, or a signed URL.

It comes before everything else of a request is read. Where the server authenticates, headers that
name a user or a project count for nothing: X-Project-ID is compared, or belongs to a signed URL,
and the others are dropped.
"""

import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_plus

from zaqar_lite.api.errors import to_response
from zaqar_lite.api.request import INVALID_REQUEST, SIGNATURE, Refused, Request, Response
from zaqar_lite.api.routes import OPEN_PATHS
from zaqar_lite.domain.errors import Denied, Unauthenticated
from zaqar_lite.domain.identity import SIGNED, Access, Principal, Verb
from zaqar_lite.domain.topics import name_of
from zaqar_lite.service.identity.authentication import (
    LATEST,
    SLOWED,
    Authenticator,
    Credential,
    Place,
)
from zaqar_lite.service.identity.authorization import Authorizer

_PROJECT = b"x-project-id"
_IDENTITY = re.compile(
    rb"x-(?:service-)?(?:(?:project|user|domain)(?:-.*)?|roles?|identity-status|catalog)"
    rb"|x-tenant(?:-.*)?|x-is-admin-project|openstack-system-scope"
)
"""The headers in which a gateway that authenticates says who sends a request."""
_UNAUTHORIZED = {
    "error": {
        "code": 401,
        "title": "Unauthorized",
        "message": "The request you have made requires authentication.",
    }
}


@dataclass(eq=False, repr=False)
class RequestAuthentication:
    """Let in the clients that a provider knows, and refuse what they may not do."""

    identity: Authenticator
    authorizer: Authorizer
    check_store: Callable[[], None]

    async def refuse(self, request: Request) -> Response | None:
        """Answer a guess from an address of which too many failed, late; None for anything else.

        Only its credential is read.
        """
        address = request.address
        if not self.identity.has_failed(address) or request.path in OPEN_PATHS:
            return None
        credential = None if request.is_signed else _credential(request.headers)
        why = None if credential is None else self.identity.refuses(address, credential)
        if why is None:
            return None
        await self.identity.delay_refusal()
        error = self._unauthorized(wrong=True) if isinstance(why, Unauthenticated) else why
        return to_response(error, invalid_title=INVALID_REQUEST, request_id=request.request_id)

    async def admit(self, request: Request) -> None:
        """Fill in the principal of a request, and its project as X-Project-ID.

        Raises:
            Refused: 401, no provider lets its credential in.
            Denied: it names another project than its own.
            TooMany: too many logins from this address failed.
            Unavailable: that can't be found out now.
        """
        if request.path in OPEN_PATHS:
            return
        headers = request.headers
        project = headers.get(_PROJECT)
        for name in [name for name in headers if _IDENTITY.fullmatch(name)]:
            del headers[name]
        if request.is_signed:
            if project is not None:
                headers[_PROJECT] = project  # it is signed too; `Checks` compares it
            request.principal = SIGNED
            return
        request.waits = SLOWED + LATEST
        principal = await self.identify(headers, request.address)
        request.waits = 0
        if not principal.admits(request.method, request.path):
            raise self._unauthorized(wrong=True)
        request.principal = principal
        if principal.project is not None:
            own = principal.project.encode()
            if project not in (None, own):
                raise Denied("it is of another project")
            headers[_PROJECT] = own
        elif project is not None and principal.is_operator:
            headers[_PROJECT] = project

    def keep(self, request: Request, known: Request) -> bool:
        """Keep with the head whom its credential stands for, unless `admit` dropped headers."""
        credential = _credential(request.headers)
        if credential is None or not request.headers.keys() >= known.headers.keys():
            return False
        known.principal, known.credential = request.principal, credential.digest
        return True

    def admits_again(self, request: Request) -> bool:
        """Tell whether what a head was let in by still holds: all but this depends on the head.

        Its credential must stand for the same principal, who must still have the right.
        """
        principal, before = self.identity.remembered(request.credential), request.principal
        if principal is None or (principal is not before and principal != before):
            return False
        request.principal = principal
        with suppress(Denied):
            self.authorise(request)
            return principal.admits(request.method, request.path)
        return False

    async def identify(self, headers: dict[bytes, bytes], address: str) -> Principal:
        """Find out whom the credential in these headers stands for.

        Raises:
            Refused: 401, no provider lets it in.
            TooMany: too many logins from this address failed.
            Unavailable: that can't be found out now.
        """
        credential = _credential(headers)
        self.check_store()
        try:
            return await self.identity.identify(credential, address)
        except Unauthenticated:
            raise self._unauthorized(wrong=credential is not None) from None

    async def still_knows(self, headers: dict[bytes, bytes]) -> Principal | None:
        """Identify the client by its headers again; None if they let in nobody any more.

        Raises:
            Unavailable: that can't be found out now.
        """
        try:
            return await self.identity.identify(_credential(headers), None)
        except Unauthenticated:
            return None

    async def readmit(self, request: Request) -> None:
        """Check a request again that was let in before.

        Raises:
            Refused: 401, its credential counts for nothing any more, or not for this request.
            Denied: it may not do this any more.
            Unavailable: that can't be found out now.
        """
        known = request.identify_again
        principal = await (self.still_knows(request.headers) if known is None else known())
        if principal is None or not principal.admits(request.method, request.path):
            raise self._unauthorized(wrong=True)
        if principal.project != request.principal.project:
            raise Denied("it is of another project by now")
        request.principal = principal
        self.authorise(request)

    def authorise(self, request: Request) -> None:
        """Refuse what the request's principal may not do.

        Raises:
            Denied: it may not.
        """
        route = request.route
        assert route is not None  # noqa: S101 - the check before this one has set it
        access = route.access
        if access.consuming and not access.consuming.isdisjoint(request.parameters):
            access = Access(access.rule, Verb.RECEIVE)
        self.authorizer.check(request.principal, access, name_of(request.queue) or None)

    def _unauthorized(self, *, wrong: bool) -> Refused:
        error = ', error="invalid_token"' if wrong else ""
        headers = [
            (b"www-authenticate", (text + error if text.startswith("Bearer") else text).encode())
            for text in dict.fromkeys(self.identity.challenges)
        ]
        return Refused(401, "Unauthorized", headers=headers, document=_UNAUTHORIZED)


def _credential(headers: dict[bytes, bytes]) -> Credential | None:
    """The credential of a request; an X-Auth-Token comes before an Authorization."""
    token = headers.get(b"x-auth-token", b"").strip()
    if token:
        service = headers.get(b"x-service-token", b"").strip()
        return Credential(
            Place.TOKEN, token.decode("latin-1"), service.decode("latin-1") if service else None
        )
    scheme, _, text = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and text.strip():
        return Credential(Place.BEARER, text.strip().decode("latin-1"))
    return None


_HEADER = b"x-gateway-secret"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """Let in only what comes through a gateway.

    Every condition that is set must hold: the client's address is in one of `networks`,
    X-Gateway-Secret is one of `secrets`, and the client's certificate is for one of `names`.
    """

    def __init__(
        self,
        *,
        networks: Sequence[Network],
        secrets: Sequence[str],
        names: frozenset[str],
    ) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._names = names
        self._calls_from = lru_cache(maxsize=1_024)(lambda address: _is_in(address, networks))
        self._anywhere = not networks

    def check_request(self, request: Request) -> None:
        """Check a request; one for a public path, or with a signature, needs no gateway.

        The signature is verified by `Checks`, which every request passes later.

        Raises:
            Denied: it came through no gateway.
        """
        if request.path in OPEN_PATHS or request.is_signed:
            request.headers.pop(_HEADER, None)
        else:
            self.check(request)

    def check(self, request: Request) -> None:
        """Take the gateway's secret off a request, and refuse one that came through no gateway.

        A WebSocket is checked by this at its handshake, whatever its path and its headers: nobody
        verifies a signature there, and the frames that follow are not checked again.

        Raises:
            Denied: it came through no gateway.
        """
        given = request.headers.pop(_HEADER, b"")
        if not self._anywhere and not self._calls_from(request.address):
            raise Denied("it comes from no gateway's address")
        # Every secret is compared, so that the time does not tell which one is nearly right.
        if self._secrets and not sum(hmac.compare_digest(given, one) for one in self._secrets):
            raise Denied("it has no gateway's secret")
        if self._names and self._names.isdisjoint(request.peer_names):
            raise Denied("it has no gateway's certificate")


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(known, "ipv4_mapped", None) or known
    return any(plain in network for network in networks)


_EVENTS = "/events"
"""What the path of every stream ends with."""
_CARRIED = frozenset(
    (SIGNATURE, *(b"url-paths", b"url-methods", b"url-expires"), *(b"x-project-id", b"client-id"))
)
_CREDENTIALS = (b"authorization", b"x-auth-token", b"x-service-token")


def take_signature(request: Request) -> None:
    """Take the headers of a signed request from its query, where that has a signature.

    Raises:
        Refused: 400, one of them is there twice, or beside another credential.
    """
    if not (request.query_string and request.path.endswith(_EVENTS)):
        return
    pairs = [pair.partition(b"=") for pair in request.query_string.split(b"&")[:256]]
    names = [name.lower() for name, _, _ in pairs]
    if SIGNATURE not in names:
        return
    headers = request.headers
    if any(name in headers for name in (*_CREDENTIALS, SIGNATURE)):
        raise Refused(
            400, "Invalid parameter", "Sign the query, or send a credential in a header: not both."
        )
    for name, (_, _, value) in zip(names, pairs, strict=True):
        if name not in _CARRIED:
            continue
        if names.count(name) > 1:
            raise Refused(
                400, "Invalid parameter", f"The parameter {name.decode()!r} may be given only once."
            )
        headers[name] = unquote_plus(value.decode("latin-1")).encode()
    request.query_string = b"&".join(
        b"%b=%b" % (name, value)
        for (name, _, value), lower in zip(pairs, names, strict=True)
        if lower not in _CARRIED
    )
    request.signed_query = True
