"""The seam of identity: a credential, what a provider makes of it, and what a provider is."""

from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import NamedTuple, Protocol

from zaqar_lite.domain.identity import Principal


class Place(Enum):
    """Where a request carried its credential."""

    BEARER = "Authorization: Bearer"
    TOKEN = "X-Auth-Token"  # noqa: S105 - the header's name


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request brings to prove who sends it; its texts are in no `repr` and no log.

    `service` is the token of a service that passes a user's request on, beside the user's own.
    """

    place: Place
    text: str = field(repr=False)
    service: str | None = field(default=None, repr=False)

    @property
    def digest(self) -> bytes:
        """Its key in a cache. A header holds no line break, so two credentials never look alike."""
        whole = f"{self.place.name}:{self.text}\n{self.service or ''}"
        return sha256(whole.encode("utf-8", "surrogateescape")).digest()


class Known(NamedTuple):
    """Whom a credential stands for, and for how many seconds that may be believed."""

    principal: Principal
    seconds: float


class Provider(Protocol):
    """One way to know who is asking."""

    @property
    def is_remote(self) -> bool:
        """Whether each credential costs a call of another server."""
        ...

    @property
    def challenge(self) -> str:
        """The WWW-Authenticate of an answer 401."""
        ...

    def recognises(self, credential: Credential) -> bool:
        """Tell whether this credential is of its kind; then no other provider is asked."""
        ...

    async def authenticate(self, credential: Credential) -> Known:
        """Find out whom a credential stands for; the caller caches the answer.

        Raises:
            Unauthenticated: the credential is wrong, expired or revoked.
            Unavailable: that can't be found out now.
        """
        ...
