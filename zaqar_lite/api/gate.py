"""The gate of a server that authenticates: who sends a request, and whether it may do this.

It comes before everything else of a request is read. Headers that name a user or a project count
for nothing: X-Project-ID is compared, or belongs to a signed URL, and the others are dropped.
"""

import re
from collections.abc import Callable

from zaqar_lite.api.call import INVALID_REQUEST, Call, Refused, Result
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.errors import to_result
from zaqar_lite.api.routes import OPEN_PATHS
from zaqar_lite.domain.errors import Denied, Unauthenticated
from zaqar_lite.domain.identity import SIGNED, Access, Principal, Verb
from zaqar_lite.service.identity.authentication import Authenticator, Credential, Place
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.identity.revalidation import Revalidation

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


class Gate:
    """Let in the clients that a provider knows, and refuse what they may not do."""

    def __init__(
        self, identity: Authenticator, authorizer: Authorizer, check_store: Callable[[], None]
    ) -> None:
        self._identity = identity
        self._authorizer = authorizer
        self._check_store = check_store

    def refuses(self, call: Call) -> Result | None:
        """Answer a guess from an address of which too many failed; None for any other request.

        Only its credential is read. Call `be_late` before you send the answer.
        """
        address = call.address
        if not self._identity.has_failed(address) or call.path in OPEN_PATHS:
            return None
        credential = None if b"url-signature" in call.headers else _credential(call.headers)
        why = None if credential is None else self._identity.refuses(address, credential)
        if why is None:
            return None
        error = self._unauthorized(wrong=True) if isinstance(why, Unauthenticated) else why
        return to_result(error, invalid_title=INVALID_REQUEST, request_id=call.request_id)

    async def be_late(self) -> None:
        """Delay such an answer."""
        await self._identity.be_late()

    async def admit(self, call: Call) -> None:
        """Fill in the principal of a call, and its project as X-Project-ID.

        Raises:
            Refused: 401, no provider lets its credential in.
            Denied: it names another project than its own.
            TooMany: too many logins from this address failed.
            Unavailable: that can't be found out now.
        """
        if call.path in OPEN_PATHS:
            return
        headers = call.headers
        project = headers.get(_PROJECT)
        for name in [name for name in headers if _IDENTITY.fullmatch(name)]:
            del headers[name]
        if b"url-signature" in headers:
            if project is not None:
                headers[_PROJECT] = project  # it is signed too; `Checks` compares it
            call.principal = SIGNED
            return
        principal = await self.identify(headers, call.address)
        if not principal.admits(call.method, call.path):
            raise self._unauthorized(wrong=True)
        call.principal = principal
        if principal.project is not None:
            own = principal.project.encode()
            if project not in (None, own):
                raise Denied("it is of another project")
            headers[_PROJECT] = own
        elif project is not None and principal.is_operator:
            headers[_PROJECT] = project

    async def identify(self, headers: dict[bytes, bytes], address: str) -> Principal:
        """Find out whom the credential in these headers stands for.

        Raises:
            Refused: 401, no provider lets it in.
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
        """Identify the client by its headers again; None if they let in nobody any more.

        Raises:
            Unavailable: that can't be found out now.
        """
        try:
            return await self._identity.identify(_credential(headers), None)
        except Unauthenticated:
            return None

    async def readmit(self, call: Call) -> None:
        """Check a request again that was let in before.

        Raises:
            Refused: 401, its credential counts for nothing any more, or not for this request.
            Denied: it may not do this any more.
            Unavailable: that can't be found out now.
        """
        principal = await self.still_knows(call.headers)
        if principal is None or not principal.admits(call.method, call.path):
            raise self._unauthorized(wrong=True)
        if principal.project != call.principal.project:
            raise Denied("it is of another project by now")
        call.principal = principal
        self.authorise(call)

    def authorise(self, call: Call) -> None:
        """Refuse what the request's principal may not do.

        Raises:
            Denied: it may not.
        """
        route = call.route
        assert route is not None  # noqa: S101 - the check before this one has set it
        access = route.access
        if access.consuming and not access.consuming.isdisjoint(call.parameters):
            access = Access(access.rule, Verb.RECEIVE)
        queue = call.path_values[0] if route.names_queue else None
        self._authorizer.check(call.principal, access, queue)

    def _unauthorized(self, *, wrong: bool) -> Refused:
        error = ', error="invalid_token"' if wrong else ""
        headers = [
            (b"www-authenticate", (text + error if text.startswith("Bearer") else text).encode())
            for text in dict.fromkeys(self._identity.challenges)
        ]
        return Refused(401, "Unauthorized", headers=headers, document=_UNAUTHORIZED)


class LongRequests:
    """End streams, and requests that wait, once they would not be let in any more."""

    def __init__(self, gate: Gate | None, checks: Checks, revalidation: Revalidation) -> None:
        self._gate = gate
        self._checks = checks
        self._revalidation = revalidation

    def hold(self, call: Call, end: Callable[[Refused | Denied], None]) -> Callable[[], None]:
        """Call `end` with why, soon after a request would not be let in any more.

        What is answered must be called when the request has ended, however it did.
        """
        refused: list[Refused | Denied] = []

        async def may() -> bool:
            try:
                await self._look(call)
            except (Refused, Denied) as exc:
                refused.append(exc)
                return False
            return True

        if self._gate is None and b"url-signature" not in call.headers:
            return _nothing
        return self._revalidation.hold(may, lambda: end(refused[0]))

    async def _look(self, call: Call) -> None:
        if b"url-signature" in call.headers:
            if (revoked := self._checks.check_revoked(call)) is not None:
                await revoked
        elif self._gate is not None:
            await self._gate.readmit(call)


def _nothing() -> None:
    """Hold nothing."""


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
