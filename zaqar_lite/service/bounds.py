"""Keep things within a bound while several requests, of any process, make some of them.

Who makes a thing holds the lock of its bound: a record that says until when it is held, and at
least how many things there are. So racing requests take turns: those that fit are let in, and none
goes beyond the bound. A request waits PATIENCE seconds for its turn, and then is 503.

The kept count only grows: what is deleted or expires is not subtracted. Once it reaches the bound,
the things are counted anew. So making one costs the same however many there are.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import uniform
from typing import NamedTuple
from weakref import WeakValueDictionary

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged, Unavailable, ZaqarLiteError
from zaqar_lite.storage.management import ManagementStore

KIND = "bound"
LIVES = 5.0
"""Seconds after which the lock of a process that crashed is free again."""
PATIENCE = 5.0
"""Seconds that a request waits for its turn, before it is answered 503."""
KEPT_MS = 600_000
"""How long a count is kept after it changed last: an import into the store is counted then."""


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `most` things of a `kind` in a project; `reached` is raised where there are as many.

    `count` counts what is there, up to a number.
    """

    project: str
    kind: str
    most: int
    count: Callable[[int], Awaitable[int]]
    reached: ZaqarLiteError


class _Held(NamedTuple):
    """The lock's record: until when it is held (ms; 0 if it is free), the count, its version."""

    until: int
    counted: int | None
    version: int


class _Turn(asyncio.Lock):
    """The turns of this process's own requests; `full_at` is when the last full count began."""

    full_at = float("-inf")


class Bounds:
    """Take turns at making things within bounds."""

    def __init__(self, management: ManagementStore, clock: Clock) -> None:
        self._management = management
        self._clock = clock
        self._turns: WeakValueDictionary[tuple[str, str], _Turn] = WeakValueDictionary()

    @asynccontextmanager
    async def room(
        self, bound: Bound, undo: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[None]:
        """Make one thing in this block; `undo` it if it took longer than the lock was held.

        Raises:
            ZaqarLiteError: there are as many as the bound allows (`bound.reached`).
            Unavailable: others have been making such things for too long.
        """
        time = asyncio.get_running_loop().time
        came_at, turn = time(), self._turns.setdefault((bound.project, bound.kind), _Turn())
        # A timeout needs a task, and a request has one only once it has waited.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(PATIENCE):
                await turn.acquire()
        except TimeoutError:
            raise _busy() from None
        try:
            if turn.full_at >= came_at:
                raise bound.reached
            held = await self._hold(bound, came_at + PATIENCE)
            try:
                counted_at, counted = time(), held.counted
                if counted is None or counted >= bound.most:
                    counted = await bound.count(bound.most)
                # What fails may be there all the same; a count that is too high is made anew.
                held = held._replace(counted=counted + 1)
                if counted >= bound.most:
                    held, turn.full_at = held._replace(counted=None), counted_at
                    raise bound.reached
                yield
            except BaseException:
                await self._release(bound, held)
                raise
            if not await self._release(bound, held):
                await undo()
                raise Unavailable("It took too long to make this: try again.")
        finally:
            turn.release()

    async def _hold(self, bound: Bound, deadline: float) -> _Held:
        """Hold the lock's record for this process, once no other does."""
        while asyncio.get_running_loop().time() < deadline:
            record = await self._management.get_record(KIND, bound.project, bound.kind)
            until, count = json.loads(record.value) if record else (0, None)
            now = self._clock.now_ms()
            if until <= now:
                free = _Held(0, count, record.version if record else 0)
                with suppress(RecordChanged):
                    return await self._take(bound, free, now + round(LIVES * 1000))
            await asyncio.sleep(uniform(0.005, 0.03))  # noqa: S311 - jitter
        raise _busy()

    async def _take(self, bound: Bound, free: _Held, until: int) -> _Held:
        """Take the lock; a request that is cancelled meanwhile gives it back."""
        writing = asyncio.ensure_future(self._write(bound, free._replace(until=until)))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            with suppress(RecordChanged, Unavailable):
                await self._release(bound, await writing)
            raise

    async def _release(self, bound: Bound, held: _Held) -> bool:
        """Free the lock; False where another process has taken it meanwhile."""
        with suppress(Unavailable):  # then it ends by itself
            try:
                await self._write(bound, held._replace(until=0))
            except RecordChanged:
                return False
        return True

    async def _write(self, bound: Bound, held: _Held) -> _Held:
        value = json.dumps([held.until, held.counted]).encode()
        record = await self._management.put_record(
            KIND, bound.project, bound.kind, value, expected=held.version, ttl_ms=KEPT_MS
        )
        return held._replace(version=record.version)


def _busy() -> Unavailable:
    return Unavailable("Others are making too many of the same kind at this moment: try again.")
