"""The gate: who a request is from, before anything else is looked at, and what it may do.

It stands only where a server authenticates. Headers that say who somebody is count for nothing
there: X-Project-ID is compared, or belongs to a signed URL, and the others are dropped.
"""

import re
from collections.abc import Callable

from zaqar_lite.api import query
from zaqar_lite.api.http import HttpError, Request
from zaqar_lite.api.routes import OPEN_PATHS, Route
from zaqar_lite.domain.errors import Denied, Unauthenticated
from zaqar_lite.domain.identity import SIGNED, Access, Principal, Verb
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.identity.identity import Identity
from zaqar_lite.service.identity.provider import Credential, Place

_PROJECT = b"x-project-id"
_IDENTITY = re.compile(
    rb"x-(?:service-)?(?:(?:project|user|domain)(?:-.*)?|roles?|identity-status|catalog)"
    rb"|x-tenant(?:-.*)?|x-is-admin-project|openstack-system-scope"
)
"""The names of headers that a gateway sets when it has found out who somebody is."""
_UNAUTHORIZED = {
    "error": {
        "code": 401,
        "title": "Unauthorized",
        "message": "The request you have made requires authentication.",
    }
}


class Gate:
    """Let in whom a provider knows, to do what it may."""

    def __init__(
        self, identity: Identity, authority: Authority, check_store: Callable[[], None]
    ) -> None:
        self._identity = identity
        self._authority = authority
        self._check_store = check_store

    async def admit(self, request: Request, address: str) -> None:
        """Fill in the principal of a request, and its project as X-Project-ID.

        Raises:
            HttpError: 401, nobody knows who it is.
            Denied: it is of another project than it says.
            TooMany: too many logins from this address failed.
            Unavailable: that can't be found out now.
        """
        if request.path in OPEN_PATHS:
            return
        headers = request.headers
        project = headers.get(_PROJECT)
        for name in [name for name in headers if _IDENTITY.fullmatch(name)]:
            del headers[name]
        if b"url-signature" in headers:
            if project is not None:
                headers[_PROJECT] = project  # it is signed too; `Checks` compares it
            request.principal = SIGNED
            return
        principal = await self.identify(headers, address)
        rules = principal.access_rules
        if rules is not None and not any(
            rule.admits(request.method, request.path) for rule in rules
        ):
            raise self._unauthorized(wrong=True)
        request.principal = principal
        if principal.project is not None:
            own = principal.project.encode()
            if project not in (None, own):
                raise Denied("it is of another project")
            headers[_PROJECT] = own
        elif project is not None and principal.is_operator:
            headers[_PROJECT] = project

    async def identify(self, headers: dict[bytes, bytes], address: str) -> Principal:
        """Find out who proves by headers who it is.

        Raises:
            HttpError: 401, nobody knows who it is.
            TooMany: too many logins from this address failed.
            Unavailable: that can't be found out now.
        """
        credential = _credential(headers)
        self._check_store()
        try:
            return await self._identity.identify(credential, address)
        except Unauthenticated:
            raise self._unauthorized(wrong=credential is not None) from None

    async def still_knows(self, headers: dict[bytes, bytes]) -> Principal | None:
        """Find out again who it is whom these headers let in; None: nobody any more.

        Raises:
            Unavailable: that can't be found out now.
        """
        try:
            return await self._identity.identify(_credential(headers), None)
        except Unauthenticated:
            return None

    async def still_admits(self, request: Request, route: Route) -> bool:
        """Tell whether a request that was let in would be so now.

        Raises:
            Unavailable: that can't be found out now.
        """
        principal = await self.still_knows(request.headers)
        if principal is None or principal.project != request.principal.project:
            return False
        request.principal = principal
        try:
            self.authorise(request, route)
        except Denied:
            return False
        return True

    def authorise(self, request: Request, route: Route) -> None:
        """Refuse what the request's principal may not do.

        Raises:
            Denied: it may not.
        """
        access = route.access
        if access.consuming and not access.consuming.isdisjoint(query.parameters(request)):
            access = Access(access.rule, Verb.RECEIVE)
        queue = request.path_values[0] if route.names_queue else None
        self._authority.check(request.principal, access, queue)

    def _unauthorized(self, *, wrong: bool) -> HttpError:
        error = ', error="invalid_token"' if wrong else ""
        headers = [
            (b"www-authenticate", (text + error if text.startswith("Bearer") else text).encode())
            for text in dict.fromkeys(self._identity.challenges)
        ]
        return HttpError(401, "Unauthorized", headers=headers, document=_UNAUTHORIZED)


def _credential(headers: dict[bytes, bytes]) -> Credential | None:
    """What a request brings to prove who sends it; of two, the token of OpenStack's clients."""
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
