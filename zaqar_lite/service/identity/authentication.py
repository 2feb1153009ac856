"""Find out who sends a request, by its credential, and whether that still holds for long ones."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from hashlib import sha256
from typing import NamedTuple, Protocol

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import TooMany, Unauthenticated, ZaqarLiteError
from zaqar_lite.domain.identity import Principal
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.identity.login_throttle import LoginThrottle, LookupLimits


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


class Provider(Protocol):
    """One way to know who is asking."""

    @property
    def is_remote(self) -> bool:
        """Whether each credential costs a call of another server."""
        ...

    @property
    def believed_for(self) -> float:
        """For how many seconds an answer may be believed."""
        ...

    @property
    def challenge(self) -> str:
        """The WWW-Authenticate of an answer 401."""
        ...

    def recognises(self, credential: Credential) -> bool:
        """Tell whether this credential is of its kind; then no other provider is asked."""
        ...

    async def authenticate(self, credential: Credential) -> Principal:
        """Find out whom a credential stands for; the caller caches the answer.

        Raises:
            Unauthenticated: the credential is wrong, expired or revoked.
            Unavailable: that can't be found out now.
        """
        ...


REFUSED_FOR = 10.0
"""Seconds for which a refused credential stays refused without another look."""
LASTING_FOR = 1.0
"""Seconds for which a stream goes on without another check, where a check asks no other server."""
SLOWED = 1.0
"""Seconds by which a refusal is delayed for an address that is refused too often."""
_LATE_A_SECOND = 500
"""Delayed refusals that are answered in a second, so that guesses cost little together."""
LATEST = 10.0
"""Seconds that a delayed refusal waits for its turn among these, at most."""
_ADDRESSES = 10
"""All addresses together may fail as often as this many may."""
_MAX_CACHED = 10_000
_EVERYBODY = ""
_TOO_MANY = "Too many logins from this address failed."
Turn = AbstractAsyncContextManager[None]


class _Entry(NamedTuple):
    """Whom a credential stands for, and until when that is believed; None where it is refused.

    A stream that was let in before believes it until `lasts_until`. `generation` is how often keys
    had been changed in this process before: an entry of an earlier generation counts for nothing.
    """

    principal: Principal | None
    until: float
    lasts_until: float
    generation: int


class Authenticator:
    """The providers of a server, behind one bounded cache.

    A credential belongs to the first provider that recognises it, and its verdict is final. An
    address that fails too often has to wait. A credential that was good at its last check never has
    to, so that wrong ones from the same address do not lock it out.

    `max_failed` is how often an address may fail in a minute. Providers that ask another server
    are asked at that pace, so that guesses are no load for that server.
    """

    def __init__(self, providers: Sequence[Provider], max_failed: int, clock: Clock) -> None:
        self._providers = providers
        self._failures = LoginThrottle(max_failed)
        self._lookups = LookupLimits(max_failed)
        self._all_failures = LoginThrottle(max_failed * _ADDRESSES)
        self._last_at = float("-inf")
        self._clock = clock
        self._cache: Cache[bytes, _Entry] = Cache(_MAX_CACHED)
        self._running: dict[bytes, asyncio.Task[Principal]] = {}
        self._generation = 0

    @property
    def challenges(self) -> Sequence[str]:
        """The WWW-Authenticate of each provider."""
        return tuple(provider.challenge for provider in self._providers)

    def forget(self) -> None:
        """Check every credential anew: a key was changed."""
        self._generation += 1
        self._running.clear()

    async def identify(self, credential: Credential | None, address: str | None) -> Principal:
        """Find out who sent a credential from this address; None where it was let in before.

        The refusal is delayed by SLOWED or more where the address was refused more than
        `max_failed` times in a minute, so that each connection makes one guess in that time.

        Raises:
            Unauthenticated: no provider lets it in.
            TooMany: too many logins from there failed lately.
            Unavailable: that can't be found out now.
        """
        try:
            return await self._identify(credential, address)
        except (Unauthenticated, TooMany):
            if address and self._failures.wait_of(address):
                await self.delay_refusal()
            raise

    def refuses(self, address: str, credential: Credential) -> Unauthenticated | TooMany | None:
        """Why a credential is refused without asking a provider; None where it is not.

        It is where its address, or all addresses together, failed too often, unless it was good
        before. Such a guess costs next to nothing. Call `delay_refusal` before you answer.
        """
        wait = max(self._failures.wait_of(address), self._all_failures.wait_of(_EVERYBODY))
        if not wait:
            return None
        entry = self._cache.get(credential.digest)
        if entry is not None and entry.principal is not None:
            return None
        if entry is not None and self._is_known(entry, entry.until):
            return Unauthenticated("it was refused before")
        return TooMany(_TOO_MANY, retry_after=math.ceil(wait))

    def remembered(self, digest: bytes) -> Principal | None:
        """Whom a credential stands for, if that is believed without another look."""
        entry = self._cache.get(digest)
        return entry.principal if entry and self._is_known(entry, entry.until) else None

    def has_failed(self, address: str) -> bool:
        """Tell whether an address brought a wrong credential lately."""
        return self._failures.has_failed(address)

    async def slow_down(self, address: str) -> None:
        """Note that a signature from an address was wrong; delay its refusal like any other."""
        self._wrong("a signature is wrong", address)
        if address and self._failures.wait_of(address):
            await self.delay_refusal()

    async def delay_refusal(self) -> None:
        """Delay a refusal, unless too many are delayed already."""
        now = asyncio.get_running_loop().time()
        turn_at = max(self._last_at + 1 / _LATE_A_SECOND, now + SLOWED)
        if turn_at <= now + SLOWED + LATEST:
            self._last_at = turn_at
            await asyncio.sleep(turn_at - now)

    async def _identify(self, credential: Credential | None, address: str | None) -> Principal:
        if credential is None:
            raise Unauthenticated("no credential")
        digest = credential.digest
        entry, is_again = self._cache.get(digest), address is None
        if entry and self._is_known(entry, entry.lasts_until if is_again else entry.until):
            if entry.principal is None:
                raise self._wrong("it was refused before", address)
            return entry.principal
        provider = next((one for one in self._providers if one.recognises(credential)), None)
        if provider is None:
            raise self._wrong("no provider recognises it", address)
        if address is None or (entry is not None and entry.principal is not None):
            return await self._look(digest, provider, credential, None)
        if provider.is_remote:
            try:
                return await self._look(digest, provider, credential, self._lookups.turn(address))
            except Unauthenticated as exc:
                raise self._wrong(str(exc), address) from None
        wait = self._failures.take(address)
        if wait:
            raise TooMany(_TOO_MANY, retry_after=math.ceil(wait))
        try:
            principal = await self._look(digest, provider, credential, None)
        except Unauthenticated:
            self._all_failures.take(_EVERYBODY)
            raise
        except BaseException:
            self._failures.give_back(address)  # it was not the credential that failed
            raise
        self._failures.give_back(address)
        return principal

    def _is_known(self, entry: _Entry, until: float) -> bool:
        return entry.generation == self._generation and self._clock.now_ms() / 1000 < until

    def _wrong(self, why: str, address: str | None) -> Unauthenticated:
        """Note that a credential was wrong."""
        if address:
            self._failures.take(address)
            self._all_failures.take(_EVERYBODY)
        return Unauthenticated(why)

    async def _look(
        self, digest: bytes, provider: Provider, credential: Credential, turn: Turn | None
    ) -> Principal:
        """Ask the provider, once for all requests that bring this credential now."""
        running = self._running.get(digest)
        if running is None:
            running = asyncio.create_task(self._ask(digest, provider, credential, turn))
            self._running[digest] = running
            running.add_done_callback(partial(self._done, digest))
        return await asyncio.shield(running)

    def _done(self, digest: bytes, task: "asyncio.Task[Principal]") -> None:
        if self._running.get(digest) is task:
            del self._running[digest]
        if not task.cancelled():
            task.exception()  # or asyncio complains where every request has gone

    async def _ask(
        self, digest: bytes, provider: Provider, credential: Credential, turn: Turn | None
    ) -> Principal:
        generation = self._generation  # what is changed meanwhile may be this
        try:
            async with turn or nullcontext():
                principal = await provider.authenticate(credential)
        except Unauthenticated:
            until = self._clock.now_ms() / 1000 + REFUSED_FOR
            self._cache[digest] = _Entry(None, until, until, generation)
            raise
        now = self._clock.now_ms() / 1000
        until = now + provider.believed_for
        if principal.expires_at is not None:
            until = min(until, principal.expires_at / 1000)
        lasts = until if provider.is_remote else min(until, now + LASTING_FOR)
        self._cache[digest] = _Entry(principal, until, lasts, generation)
        return principal


LOOK_EVERY = 4.0
"""Seconds between two checks, so that what a key opened ends within 5 seconds of the key."""
_AT_ONCE = 8


class Revalidation(BackgroundWorker):
    """End streams, connections and waits that may not go on: their key was revoked, for example.

    While a store or Keystone is away, what depends on it goes on.
    """

    def __init__(self) -> None:
        self._held: dict[object, tuple[Callable[[], Awaitable[bool]], Callable[[], None]]] = {}
        self._work = Background("checking what goes on", self._look, rest=LOOK_EVERY)

    def hold(
        self, may: Callable[[], Awaitable[bool]], end: Callable[[], None]
    ) -> Callable[[], object]:
        """Ask every LOOK_EVERY seconds whether something `may` go on, and else `end` it.

        What is answered must be called when it has ended, however it did.
        """
        token = object()
        self._held[token] = may, end
        return partial(self._held.pop, token, None)

    async def _look(self) -> None:
        """Check everything, a few at a time: each check may cost a call of another server."""
        tokens = iter(tuple(self._held))
        await asyncio.gather(*(self._look_at(tokens) for _ in range(_AT_ONCE)))

    async def _look_at(self, tokens: Iterator[object]) -> None:
        slices = Slices()
        for token in tokens:
            await slices.next_turn()
            if token not in self._held:
                continue
            may, end = self._held[token]
            try:
                goes_on = await may()
            except ZaqarLiteError:
                continue
            if not goes_on and token in self._held:
                end()
