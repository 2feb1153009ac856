"""Reserve room in a quota for what is about to be made, so that no race exceeds the quota.

A record of the project names what is being made now. Who makes something writes itself into it at
the version that it has read, having counted what is there and what others are making. So of racing
makers exactly those get room for whom there is some. Nobody is refused because of another's
unfinished work: it waits until that is there, or has failed.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import uniform
from weakref import WeakValueDictionary

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QuotaReached, RecordChanged, Unavailable
from zaqar_lite.storage.management import ManagementStore

KIND = "reserved"
LIVES = 20.0
"""Seconds after which the reservation of a process that crashed counts no more."""
PATIENCE = 5.0
"""Seconds that a request waits for others to finish, before it is answered 503."""
MOST_HELD = 100
"""Things of one kind that a project may be making at a time."""
_SHORTEST_REST, _LONGEST_REST = 0.005, 0.03
_MAX_ROUNDS = 20


class Reservations:
    """Reserve room for one kind of thing.

    `count` counts what a project has, up to a number; `is_there` tells whether a thing is made.
    """

    def __init__(
        self,
        management: ManagementStore,
        clock: Clock,
        kind: str,
        *,
        count: Callable[[str, int], Awaitable[int]],
        is_there: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        self._management = management
        self._clock = clock
        self._kind = kind
        self._count = count
        self._is_there = is_there
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def room(
        self, project: str, name: str, quota: int | None, undo: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Hold room for the thing of this name while it is made.

        If that takes longer than the reservation lives, `undo` removes the thing again.

        Raises:
            QuotaReached: the project has as many as its quota allows.
            Unavailable: others have been making such things for too long.
        """
        if quota is None:
            yield
            return
        reserved_at = asyncio.get_running_loop().time()
        token = await self._reserve(project, name, quota)
        try:
            yield
            if asyncio.get_running_loop().time() - reserved_at > LIVES:
                await undo()
                raise Unavailable("It took too long to make this: try again.")
        finally:
            with suppress(Unavailable):  # it ends by itself
                await self._give_back(project, token)

    async def _reserve(self, project: str, name: str, quota: int) -> str:
        token = secrets.token_hex(4)
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - begun < PATIENCE:
            async with self._turns.setdefault(project, asyncio.Lock()):
                if await self._try(project, name, quota, token):
                    return token
            await asyncio.sleep(uniform(_SHORTEST_REST, _LONGEST_REST))  # noqa: S311 - jitter
        raise Unavailable(f"Too many {self._kind} of this project are being made: try again.")

    async def _try(self, project: str, name: str, quota: int, token: str) -> bool:
        """Reserve room if there is some now; False while others are making what may fill it."""
        held, version = await self._read(project)
        # In this order: what is made meanwhile counts twice, and never not at all.
        unmade = [one for one, _ in held.values() if not await self._is_there(project, one)]
        made = await self._count(project, quota)
        if made >= quota:
            raise QuotaReached(
                f"The project has {quota} {self._kind}, as many as its quota allows: end some, or "
                "ask the operator of this server for more."
            )
        if made + len(unmade) >= quota or len(held) >= MOST_HELD:
            return False
        held[token] = name, self._clock.now_ms() + round(LIVES * 1000)
        return await self._write(project, held, version)

    async def _give_back(self, project: str, token: str) -> None:
        for _ in range(_MAX_ROUNDS):
            async with self._turns.setdefault(project, asyncio.Lock()):
                held, version = await self._read(project)
                if held.pop(token, None) is None or await self._write(project, held, version):
                    return

    async def _read(self, project: str) -> tuple[dict[str, tuple[str, int]], int]:
        """The reservations that count, by token: a name, and an instant in milliseconds."""
        record = await self._management.get_record(KIND, project, self._kind)
        if record is None:
            return {}, 0
        now, held = self._clock.now_ms(), json.loads(record.value)
        live = {token: (one, until) for token, (one, until) in held.items() if until > now}
        return live, record.version

    async def _write(self, project: str, held: dict[str, tuple[str, int]], version: int) -> bool:
        """Write the reservations; False where another process has written since they were read."""
        try:
            await self._management.put_record(
                KIND,
                project,
                self._kind,
                json.dumps(held).encode(),
                expected=version,
                ttl_ms=round(LIVES * 1000),
            )
        except RecordChanged:
            return False
        return True
