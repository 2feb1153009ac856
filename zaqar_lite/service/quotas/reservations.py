"""Reserve room within a bound for what is about to be made, so that no race exceeds the bound.

A record for each bound names what is being made now. A request that makes something counts what is
there and what others are making, and then adds a reservation to that record at the version that it
has read. So of racing requests exactly those get room for whom there is some. No request is refused
because of another's unfinished work: it waits until that is there, or has failed.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import uniform
from weakref import WeakValueDictionary

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, RecordChanged, Unavailable
from zaqar_lite.storage.management import ManagementStore

KIND = "reserved"
LIVES = 20.0
"""Seconds after which the reservation of a process that crashed counts no more."""
PATIENCE = 5.0
"""Seconds that a request waits for others to finish, before it is answered 503."""
MOST_HELD = 100
"""Things within one bound that may be in the making at a time."""
_SHORTEST_REST, _LONGEST_REST = 0.005, 0.03
_MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `most` things of a `kind` in a project.

    `kind` names the record of the reservations. `count` counts the things that are there, up to a
    number. `reached` is raised where there is no room.
    """

    project: str
    kind: str
    most: int
    count: Callable[[int], Awaitable[int]]
    reached: LimitReached


class Reservations:
    """Reserve room within bounds; `is_there(project, name)` tells whether a thing is made."""

    def __init__(
        self,
        management: ManagementStore,
        clock: Clock,
        *,
        is_there: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        self._management = management
        self._clock = clock
        self._is_there = is_there
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def room(
        self, bound: Bound, name: str, undo: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Hold room for the thing of this name while it is made.

        If that takes longer than the reservation lives, `undo` removes the thing again.

        Raises:
            LimitReached: there are as many as the bound allows.
            Unavailable: others have been making such things for too long.
        """
        reserved_at = asyncio.get_running_loop().time()
        token = await self._reserve(bound, name)
        try:
            yield
            if asyncio.get_running_loop().time() - reserved_at > LIVES:
                await undo()
                raise Unavailable("It took too long to make this: try again.")
        finally:
            with suppress(Unavailable):  # it ends by itself
                await self._give_back(bound, token)

    async def _reserve(self, bound: Bound, name: str) -> str:
        token = secrets.token_hex(4)
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - begun < PATIENCE:
            async with self._turn(bound):
                if await self._try(bound, name, token):
                    return token
            await asyncio.sleep(uniform(_SHORTEST_REST, _LONGEST_REST))  # noqa: S311 - jitter
        raise Unavailable("Others are making too many of the same kind at this moment: try again.")

    async def _try(self, bound: Bound, name: str, token: str) -> bool:
        """Reserve room if there is some now; False while others are making what may fill it."""
        held, version = await self._read(bound)
        # In this order: what is made meanwhile is counted twice, and never missed.
        unmade = [one for one, _ in held.values() if not await self._is_there(bound.project, one)]
        made = await bound.count(bound.most)
        if made >= bound.most:
            raise bound.reached
        if made + len(unmade) >= bound.most or len(held) >= MOST_HELD:
            return False
        held[token] = name, self._clock.now_ms() + round(LIVES * 1000)
        return await self._write(bound, held, version)

    async def _give_back(self, bound: Bound, token: str) -> None:
        for _ in range(_MAX_ROUNDS):
            async with self._turn(bound):
                held, version = await self._read(bound)
                if held.pop(token, None) is None or await self._write(bound, held, version):
                    return

    def _turn(self, bound: Bound) -> asyncio.Lock:
        """Requests of this process take turns, so that they don't race each other."""
        return self._turns.setdefault((bound.project, bound.kind), asyncio.Lock())

    async def _read(self, bound: Bound) -> tuple[dict[str, tuple[str, int]], int]:
        """The reservations that count, by token: a name, and an instant in milliseconds."""
        record = await self._management.get_record(KIND, bound.project, bound.kind)
        if record is None:
            return {}, 0
        now, held = self._clock.now_ms(), json.loads(record.value)
        live = {token: (one, until) for token, (one, until) in held.items() if until > now}
        return live, record.version

    async def _write(self, bound: Bound, held: dict[str, tuple[str, int]], version: int) -> bool:
        """Write the reservations; False where another process has written since they were read."""
        try:
            await self._management.put_record(
                KIND,
                bound.project,
                bound.kind,
                json.dumps(held).encode(),
                expected=version,
                ttl_ms=round(LIVES * 1000),
            )
        except RecordChanged:
            return False
        return True
