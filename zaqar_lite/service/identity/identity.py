"""Find out who is asking, once in a while for each credential and never twice at once."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from random import uniform
from typing import NamedTuple

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import TooMany, Unauthenticated
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.identity.failures import Failures
from zaqar_lite.service.identity.pace import Pace
from zaqar_lite.service.identity.provider import Credential, Known, Provider

REFUSED_FOR = 10.0
"""Seconds for which a refused credential stays refused without another look."""
SLOWED = 1.0
"""Seconds by which an address that is refused too often is refused later."""
_MOST_SLOWED = 10_000
_MAX_CACHED = 10_000
Turn = AbstractAsyncContextManager[None]


class _Entry(NamedTuple):
    """What is known of a credential until an instant; no principal: that it is refused."""

    principal: Principal | None
    until: float


class Identity:
    """The providers of a server, behind one bounded cache.

    A credential belongs to the first provider that recognises it, and its verdict is final. An
    address that fails too often is told to wait; a credential that was good when it was looked at
    last never is, so wrong ones from the same address do not lock it out.

    `max_failed` is how often an address may fail in a minute. Providers that ask another server
    are asked at that pace, so that guessing does not become that server's load.
    """

    def __init__(self, providers: Sequence[Provider], max_failed: int, clock: Clock) -> None:
        self._providers = providers
        self._failures = Failures(max_failed)
        self._pace = Pace(max_failed)
        self._refusals = Failures(max_failed)
        self._slowed = 0
        self._clock = clock
        self._cache: OrderedDict[bytes, _Entry] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[Principal]] = {}
        self._generation = 0

    @property
    def challenges(self) -> Sequence[str]:
        """The WWW-Authenticate of each provider."""
        return tuple(provider.challenge for provider in self._providers)

    def forget(self) -> None:
        """Look at every credential again: a key was changed."""
        self._generation += 1
        self._cache.clear()
        self._running.clear()

    async def identify(self, credential: Credential | None, address: str | None) -> Principal:
        """Find out who sent a credential, from this address; None where it was let in before.

        An address that was refused more than `max_failed` times in a minute, for whatever reason,
        is told so about SLOWED later: so many connections make as few guesses in that time.

        Raises:
            Unauthenticated: nobody knows.
            TooMany: too many logins from there failed lately.
            Unavailable: that can't be found out now.
        """
        try:
            return await self._identify(credential, address)
        except (Unauthenticated, TooMany):
            if address and self._refusals.take(address) and self._slowed < _MOST_SLOWED:
                self._slowed += 1
                try:
                    # Not all at the same instant.
                    await asyncio.sleep(SLOWED * uniform(0.5, 1.5))  # noqa: S311 - jitter
                finally:
                    self._slowed -= 1
            raise

    async def _identify(self, credential: Credential | None, address: str | None) -> Principal:
        if credential is None:
            raise Unauthenticated("no credential")
        digest = credential.digest
        entry = self._cache.get(digest)
        now = self._clock.now_ms() / 1000
        if entry is not None and now < entry.until:
            if entry.principal is None:
                raise Unauthenticated("it was refused before")
            return entry.principal
        provider = next((one for one in self._providers if one.recognises(credential)), None)
        if provider is None:
            raise Unauthenticated("no provider recognises it")
        if address is None or (entry is not None and entry.principal is not None):
            return await self._look(digest, provider, credential, None)
        if provider.is_remote:
            return await self._look(digest, provider, credential, self._pace.turn(address))
        wait = self._failures.take(address)
        if wait:
            raise TooMany("Too many logins from this address failed.", retry_after=math.ceil(wait))
        try:
            principal = await self._look(digest, provider, credential, None)
        except Unauthenticated:
            raise
        except BaseException:
            self._failures.give_back(address)  # it was not the credential that failed
            raise
        self._failures.give_back(address)
        return principal

    async def _look(
        self, digest: bytes, provider: Provider, credential: Credential, turn: Turn | None
    ) -> Principal:
        """Ask the provider, in turn, together with all who have the same credential."""
        running = self._running.get(digest)
        if running is None:
            running = asyncio.create_task(self._ask(digest, provider, credential, turn))
            self._running[digest] = running
            running.add_done_callback(self._done(digest))
        return await asyncio.shield(running)

    def _done(self, digest: bytes) -> "Callable[[asyncio.Task[Principal]], None]":
        def done(task: "asyncio.Task[Principal]") -> None:
            if self._running.get(digest) is task:
                del self._running[digest]
            if not task.cancelled():
                task.exception()  # whoever asked has gone: nobody else would look at it

        return done

    async def _ask(
        self, digest: bytes, provider: Provider, credential: Credential, turn: Turn | None
    ) -> Principal:
        generation = self._generation
        try:
            async with turn or nullcontext():
                known = await provider.authenticate(credential)
        except Unauthenticated:
            self._keep(digest, None, generation)
            raise
        self._keep(digest, known, generation)
        return known.principal

    def _keep(self, digest: bytes, known: Known | None, generation: int) -> None:
        if generation != self._generation:
            return  # what was changed meanwhile may be this
        now = self._clock.now_ms() / 1000
        if known is None:
            entry = _Entry(None, now + REFUSED_FOR)
        else:
            ends = known.principal.expires_at
            until = now + known.seconds
            entry = _Entry(known.principal, until if ends is None else min(until, ends / 1000))
        self._cache[digest] = entry
        self._cache.move_to_end(digest)
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
