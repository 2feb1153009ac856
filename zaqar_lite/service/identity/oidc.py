"""Tokens of an OpenID Connect issuer (JWT), checked by the keys that the issuer publishes.

The issuer, its keys and the audience are the server's settings: nothing that a token says leads
anywhere. Only asymmetric signatures count.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import msgspec

from zaqar_lite.domain.errors import Invalid, Unauthenticated, Unavailable
from zaqar_lite.domain.identity import Grant, How, Principal, is_project_id, parse_grants
from zaqar_lite.service.identity.authentication import Credential, Place

logger = logging.getLogger("zaqar_lite")
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
REQUIRED = ("exp", "iat", "iss", "aud", "sub")
LEEWAY = 30
_GRANTS = "grants"
"""The claim whose grants decide where a token has it, and not its roles."""
_LONGEST = 86_400
"""Seconds that a token may live at most."""
_FRESH, _STALE, _PAUSE, _PATIENCE = 300.0, 6 * 3600.0, 30.0, 2.0
"""Seconds: for how long published keys are used without another look; for how long when the issuer
is away; between two tries to read them; and that a token of a known key waits for such a try."""
_SMALLEST_RSA = 2_048
Fetch = Callable[[], Awaitable[bytes]]
"""Reads an issuer's JWKS; raises OSError or ValueError where that can't be done."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens count, and which of their claims name the project and the roles."""

    name: str
    audience: str
    project_claim: str = "project_id"
    roles_claim: str = "roles"


class OpenIdConnect:
    """The provider that recognises an issuer's tokens."""

    challenge = 'Bearer realm="zaqar-lite"'
    is_remote = False
    believed_for = 60.0

    def __init__(self, issuer: Issuer, fetch: Fetch) -> None:
        self._issuer = issuer
        self._published = PublishedKeys(fetch)

    def recognises(self, credential: Credential) -> bool:
        """Tell whether a credential is a JWT."""
        return credential.place is Place.BEARER and credential.text.count(".") == 2

    async def authenticate(self, credential: Credential) -> Principal:
        """Find out whose token it is."""
        try:
            header = jwt.get_unverified_header(credential.text)
            key = await self._published.find(header.get("kid"), header.get("alg"))
            claims = jwt.decode(
                credential.text,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._issuer.audience,
                issuer=self._issuer.name,
                leeway=LEEWAY,
                options={"require": list(REQUIRED)},
            )
        except jwt.PyJWTError as exc:
            raise Unauthenticated(f"the token is refused: {exc}") from None
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        issuer = self._issuer
        project = claims.get(issuer.project_claim)
        if not is_project_id(project):
            raise Unauthenticated(f"the token has no valid {issuer.project_claim}")
        # The library takes numbers that are written as texts, too.
        expires_at, issued_at = int(claims["exp"]), int(claims["iat"])
        if expires_at - issued_at > _LONGEST:
            raise Unauthenticated("the token lives for too long")
        roles = _texts(claims.get(issuer.roles_claim, []), issuer.roles_claim)
        return Principal(
            How.JWT,
            project,
            str(claims["sub"]),
            frozenset(roles),
            self._grants(claims),
            expires_at=expires_at * 1000,
        )

    @staticmethod
    def _grants(claims: Mapping[str, Any]) -> tuple[Grant, ...] | None:
        if _GRANTS not in claims:
            return None
        try:
            return parse_grants(_texts(claims[_GRANTS], _GRANTS))
        except Invalid as exc:
            raise Unauthenticated(f"the token's {_GRANTS}: {exc}") from None


class PublishedKeys:
    """An issuer's keys, read again when they are old or one is missing, but not for each token.

    The last ones are used for hours when the issuer is away, and meanwhile when it is slow.
    """

    def __init__(self, fetch: Fetch, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read_at = self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str | None) -> jwt.PyJWK:
        """Find the key of this id.

        Raises:
            Unauthenticated: the issuer has no such key for this algorithm.
            Unavailable: its keys can't be read.
        """
        if algorithm not in ALGORITHMS:
            raise Unauthenticated(f"tokens are not signed by {algorithm!r} here")
        if kid not in self._keys or self._age() > _STALE:
            await self._refresh(None)
        elif self._age() > _FRESH:
            await self._refresh(_PATIENCE)
        if self._age() > _STALE:
            raise Unavailable("The keys of the tokens' issuer can't be read.")
        key = self._keys.get(kid)
        if key is None or key.algorithm_name != algorithm:
            raise Unauthenticated("the issuer has no such key")
        return key

    def _age(self) -> float:
        return self._monotonic() - self._read_at

    async def _refresh(self, seconds: float | None) -> None:
        """Have the keys read again, unless that was tried lately; wait for it for some time."""
        now = self._monotonic()
        if self._reading is None and now - self._tried_at >= _PAUSE:
            self._tried_at = now
            self._reading = asyncio.create_task(self._read())
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=seconds)

    async def _read(self) -> None:
        begun = self._monotonic()
        try:
            self._keys = _usable(await self._fetch())
            self._read_at = begun
        except (OSError, ValueError, RecursionError, jwt.PyJWTError) as exc:
            logger.warning("the keys of the tokens' issuer can't be read: %s", exc)
        finally:
            self._reading = None


class _Published(msgspec.Struct):
    keys: list[dict[str, Any]]


def _usable(text: bytes) -> dict[str | None, jwt.PyJWK]:
    """The keys by id that are long enough; one alone may have none."""
    usable: dict[str | None, jwt.PyJWK] = {}
    for key in jwt.PyJWKSet(msgspec.json.decode(text, type=_Published).keys).keys:
        if key.algorithm_name not in ALGORITHMS or key.public_key_use not in (None, "sig"):
            continue
        if key.key_type == "RSA" and key.key.key_size < _SMALLEST_RSA:
            logger.warning("a key of the tokens' issuer is too short and not used")
            continue
        usable[key.key_id] = key
    return usable


def _texts(value: object, name: str) -> list[str]:
    """Read a claim that is a list of texts, or one text of words."""
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    raise Unauthenticated(f"the token's {name} is no list of texts")
