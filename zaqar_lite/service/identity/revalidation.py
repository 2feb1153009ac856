"""Streams, connections and requests that wait are checked again while they last."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.service.background import Background, BackgroundWorker

LOOK_EVERY = 4.0
"""Seconds between two checks, so that what a key opened ends within 5 seconds of the key."""
_AT_ONCE = 8
_TURN = 100


class _Held(NamedTuple):
    may: Callable[[], Awaitable[bool]]
    end: Callable[[], None]


class Revalidation(BackgroundWorker):
    """End what may not go on any more: its key or token was revoked, or a right taken away.

    While a store or Keystone is away, what depends on it goes on.
    """

    def __init__(self) -> None:
        self._held: dict[object, _Held] = {}
        self._work = Background("checking what goes on", self._look, rest=LOOK_EVERY)

    def hold(
        self, may: Callable[[], Awaitable[bool]], end: Callable[[], None]
    ) -> Callable[[], None]:
        """Ask every LOOK_EVERY seconds whether something `may` go on, and else `end` it.

        What is answered must be called when it has ended, however it did.
        """
        token = object()
        self._held[token] = _Held(may, end)

        def release() -> None:
            self._held.pop(token, None)

        return release

    async def _look(self) -> None:
        """Check everything, a few at a time: each check may cost a call of another server."""
        tokens = iter(tuple(self._held))
        await asyncio.gather(*(self._look_at(tokens) for _ in range(_AT_ONCE)))

    async def _look_at(self, tokens: Iterator[object]) -> None:
        for count, token in enumerate(tokens):
            held = self._held.get(token)
            if count % _TURN == 0:
                await asyncio.sleep(0)  # others have their turn
            if held is None:
                continue
            try:
                may = await held.may()
            except ZaqarLiteError:
                continue
            if not may and self._held.get(token) is held:
                held.end()
