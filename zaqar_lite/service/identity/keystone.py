"""Tokens of OpenStack's Keystone, which is asked whose they are.

A token may ask about itself, so the server needs no account. With one it asks in its own name,
as keystonemiddleware does. Keystone's answer is believed for a while; for as long a revoked token
still works.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from zaqar_lite.domain.errors import Unauthenticated, Unavailable
from zaqar_lite.domain.identity import AccessRule, How, Principal, is_project_id
from zaqar_lite.service.identity.authentication import Credential, Place

logger = logging.getLogger("zaqar_lite")
SERVICE_TYPE = "messaging"
_PATH = "/auth/tokens"
_PAUSE = 1.0
"""Seconds after a failure in which Keystone is not asked again."""
_LONGEST = 2_048
"""Characters that a token may have; Keystone's have some hundreds.

A web server in front of Keystone may end the connection over a longer header. Keystone would then
count as away for everybody.
"""
_AWAY = "The Keystone service is temporarily unavailable."


class Answer(NamedTuple):
    """What Keystone answered: a status, a document if it is JSON, and the token that it made."""

    status: int
    document: Any
    token: str | None = None

    def __repr__(self) -> str:
        """Show the status alone: a document may hold tokens, too."""
        return f"Answer(status={self.status})"


Send = Callable[[str, str, Mapping[str, str], object], Awaitable[Answer]]
"""Sends a method, path, headers and document to Keystone; raises OSError when it is away."""


@dataclass(frozen=True, slots=True)
class Account:
    """The server's own account at Keystone: `user` and `project` as its documents name them."""

    user: Mapping[str, Any]
    password: str = field(repr=False)
    project: Mapping[str, Any]

    def login(self, trust: str | None = None) -> dict[str, Any]:
        """The document that asks for a token of the account's project, or of a trust."""
        user = {**self.user, "password": self.password}
        identity = {"methods": ["password"], "password": {"user": user}}
        scope = {"project": self.project} if trust is None else {"OS-TRUST:trust": {"id": trust}}
        return {"auth": {"identity": identity, "scope": scope}}


@dataclass(eq=False, repr=False)
class Keystone:
    """The provider that recognises what is in X-Auth-Token.

    Clients log in at `uri`, which answers 401 name; `believed_for` is in seconds. A request that a
    service passes on has the service's token too, which needs one of `service_roles`; then the
    user's own token may have expired meanwhile, and its access rules do not count.
    """

    is_remote = True

    send: Send
    uri: str
    believed_for: float
    service_roles: frozenset[str]
    account: Account | None = None

    def __post_init__(self) -> None:
        self.challenge = f'Keystone uri="{self.uri}"'
        self._asks_at = float("-inf")
        self._own = self._own_user = self._told = ""
        self._own_login = asyncio.Lock()

    def recognises(self, credential: Credential) -> bool:
        """Tell whether a credential came as OpenStack's clients send it."""
        return credential.place is Place.TOKEN

    async def authenticate(self, credential: Credential) -> Principal:
        """Find out whose token it is."""
        service = None
        if credential.service is not None:
            service = await self._ask(credential.service)
            if service.roles.isdisjoint(self.service_roles):
                raise Unauthenticated("the service's token has no role of a service")
        user = await self._ask(credential.text, by=credential.service)
        if service is None:
            return user
        return replace(user, expires_at=service.expires_at, access_rules=None)

    async def own_user(self) -> str:
        """The id of the server's own account.

        Raises:
            Unavailable: it can't log in now, or there is none.
        """
        if not self._own_user:
            await self._log_in(self._needed())
        return self._own_user

    async def log_in_by(self, trust: str) -> Answer:
        """Ask for a token of a trust that was made for the server's account.

        Keystone answers 401, 403 or 404 where there is no such trust any more.

        Raises:
            Unavailable: Keystone is away, or refuses the account.
        """
        account = self._needed()
        answer = await self.call("POST", f"{_PATH}?nocatalog", {}, account.login(trust))
        if answer.status == 401:  # of a wrong password, too: then this is refused as well
            self._own = ""
            await self._log_in(account)
        return answer

    def _needed(self) -> Account:
        if self.account is None:
            raise Unavailable("This server has no account at Keystone.")
        return self.account

    async def _ask(self, token: str, *, by: str | None = None) -> Principal:
        """Ask about a token, in our own name, in that of the service, or in the token's own."""
        is_text = token.isascii() and token.isprintable() and " " not in token
        if len(token) > _LONGEST or not is_text:
            raise Unauthenticated("no token looks like this")
        query = "" if by is None else "&allow_expired=1"
        for is_last in (False, True):
            asker = by or token if self.account is None else await self._log_in(self.account)
            answer = await self.call(
                "GET",
                f"{_PATH}?nocatalog{query}",
                {
                    "X-Auth-Token": asker,
                    "X-Subject-Token": token,
                    "OpenStack-Identity-Access-Rules": "1",
                },
            )
            if answer.status != 401 or self.account is None or is_last:
                break
            if self._own == asker:
                self._own = ""  # it has expired, or was revoked
        principal = self._read(answer)
        if self._told:
            self._told = ""
            logger.info("Keystone says again whose a token is")
        return principal

    def _read(self, answer: Answer) -> Principal:
        ours = self.account is not None
        if answer.status == 200:
            return self.parse(answer)
        if answer.status == 404 and not isinstance(answer.document, dict):
            self._fails("it answers 404 without JSON: is keystone_url right?")
        if answer.status == 404 or (answer.status in (400, 401) and not ours):
            raise Unauthenticated("Keystone knows no such token")
        who = "keystone_cloud's account" if ours else "a token"
        raise self._fails(f"it answers {answer.status} to {who} that asks about a token")

    async def _log_in(self, account: Account) -> str:
        """Our own token; one log-in at a time makes it."""
        async with self._own_login:
            if self._own:
                return self._own
            answer = await self.call("POST", _PATH, {}, account.login())
            if answer.status != 201 or answer.token is None:
                raise self._fails(
                    f"it refuses keystone_cloud's account (status {answer.status})", pause=_PAUSE
                )
            self._own_user = self.parse(answer).user or ""
            self._own = answer.token
            return self._own

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], document: object = None
    ) -> Answer:
        """Send a request, unless Keystone has just failed.

        Raises:
            Unavailable: it is away, or has failed.
        """
        if time.monotonic() < self._asks_at:
            raise Unavailable(_AWAY, detail="it failed a moment ago")
        try:
            answer = await self.send(method, path, headers, document)
        except OSError as exc:
            raise self._fails(str(exc), pause=_PAUSE) from None
        if answer.status >= 500 or answer.status == 429:
            raise self._fails(f"it answers {answer.status}", pause=_PAUSE)
        return answer

    def parse(self, answer: Answer) -> Principal:
        """Read whose token an answer is about.

        Raises:
            Unavailable: it can't be read.
        """
        try:
            return parse_token(answer.document["token"])
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise self._fails(f"its answer can't be read: {exc!r}") from None

    def _fails(self, why: str, *, pause: float = 0.0) -> Unavailable:
        """Say in the log what is wrong, once until it works again; ask nothing for so long."""
        self._asks_at = max(self._asks_at, time.monotonic() + pause)
        if why != self._told:
            self._told = why
            logger.error("Keystone can't say whose a token is: %s", why)
        return Unavailable(_AWAY, detail=why)


def parse_token(token: Mapping[str, Any]) -> Principal:
    """Read whom Keystone's document of a token is of; raises what reading something else raises."""
    project = token.get("project", {}).get("id")
    if project is not None and not is_project_id(project):
        raise ValueError("the id of its project is not valid")
    rules = token.get("application_credential", {}).get("access_rules")
    return Principal(
        How.KEYSTONE,
        project,
        str(token["user"]["id"]),
        frozenset(str(role["name"]) for role in token.get("roles", ())),
        expires_at=int(datetime.fromisoformat(token["expires_at"]).timestamp() * 1000),
        access_rules=None
        if rules is None
        else tuple(
            AccessRule(str(rule["method"]), str(rule["path"]))
            for rule in rules
            if rule["service"] == SERVICE_TYPE
        ),
    )
