"""Reserve room within a bound for what is about to be made, so that no race exceeds the bound.

A record for each bound names what is being made now, and keeps a count. A request that makes
something adds a reservation to that record, and one to the count, at the version that it has read.
So of racing requests exactly those get room for whom there is some. No request is refused because
of another's unfinished work: it waits until that is there, or has failed.

The count is never too low: what fails to be made, is deleted or expires is not subtracted. So once
it says that there is no room, what is there is counted anew. Making something costs the same
however much there is, and a count of n things comes after as many were made as it found room for.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import uniform
from typing import NamedTuple
from weakref import WeakValueDictionary

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged, Unavailable, ZaqarLiteError
from zaqar_lite.service.records import count_records
from zaqar_lite.storage.management import ManagementStore

KIND = "reserved"
LIVES = 20.0
"""Seconds after which the reservation of a process that crashed counts no more."""
PATIENCE = 5.0
"""Seconds that a request waits for others to finish, before it is answered 503."""
MOST_HELD = 100
"""Things within one bound that may be in the making at a time."""
KEPT_MS = 600_000
"""How long a count is kept after it changed last. Nothing but a request makes what it counts, but
for an import into the store."""
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
    reached: ZaqarLiteError


class _Reserved(NamedTuple):
    """What the record of a bound says.

    held     the reservations that count, by token: a name, and an instant in milliseconds
    counted  at least how many things there are and are being made; None if that is not known
    version  the record's
    """

    held: dict[str, tuple[str, int]]
    counted: int | None
    version: int


class _Book:
    """What the requests of this process want of one bound: one of them writes it down for all.

    asking   reservations that are wanted, by their token: the name of what is to be made
    refused  the tokens of those among them for which there is no room
    ended    the tokens of reservations that are to be removed
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asking: dict[str, str] = {}
        self.refused: set[str] = set()
        self.ended: set[str] = set()


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
        self._books: WeakValueDictionary[tuple[str, str], _Book] = WeakValueDictionary()

    @asynccontextmanager
    async def room(
        self, bound: Bound, name: str, undo: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[None]:
        """Hold room for the thing of this name while it is made.

        If that takes longer than the reservation lives, `undo` removes the thing again.

        Raises:
            ZaqarLiteError: there are as many as the bound allows (`bound.reached`).
            Unavailable: others have been making such things for too long.
        """
        reserved_at = asyncio.get_running_loop().time()
        book = self._books.setdefault((bound.project, bound.kind), _Book())
        token = await self._reserve(bound, book, name)
        try:
            yield
            if asyncio.get_running_loop().time() - reserved_at > LIVES:
                await undo()
                raise Unavailable("It took too long to make this: try again.")
        finally:
            with suppress(Unavailable):  # it ends by itself
                await self._give_back(bound, book, token)

    async def _reserve(self, bound: Bound, book: _Book, name: str) -> str:
        token = secrets.token_hex(4)
        begun = asyncio.get_running_loop().time()
        book.asking[token] = name
        try:
            while asyncio.get_running_loop().time() - begun < PATIENCE:
                async with book.lock:
                    if token in book.asking and token not in book.refused:
                        await self._settle(bound, book)
                if token not in book.asking:
                    return token
                if token in book.refused:
                    raise bound.reached
                await asyncio.sleep(uniform(_SHORTEST_REST, _LONGEST_REST))  # noqa: S311 - jitter
        except asyncio.CancelledError:
            book.asking.pop(token, None)
            with suppress(Unavailable):  # it may have been reserved by now
                await self._give_back(bound, book, token)
            raise
        finally:
            book.asking.pop(token, None)
            book.refused.discard(token)
        raise Unavailable("Others are making too many of the same kind at this moment: try again.")

    async def _give_back(self, bound: Bound, book: _Book, token: str) -> None:
        book.ended.add(token)
        for _ in range(_MAX_ROUNDS):
            async with book.lock:
                if token not in book.ended:
                    return
                await self._settle(bound, book)

    async def _settle(self, bound: Bound, book: _Book) -> None:
        """Write down what has ended, and what there is room for, which is asking no more.

        All go on asking if another process was faster to write, or while things in the making may
        fill the bound. They are refused once as many are made as it allows.
        """
        held, counted, version = await self._read(bound)
        ended, asking = {*book.ended}, {**book.asking}
        removed = [token for token in ended if held.pop(token, None)]
        room, is_full = 0, False
        if asking and counted is not None and counted + len(asking) <= bound.most:
            room = MOST_HELD - len(held)
        elif asking:
            room, is_full, counted = await self._count(bound, held, len(asking))
        # A request that was cancelled while it wrote for all has left theirs in the record.
        wanted = [token for token in asking if token not in held][: max(room, 0)]
        until = self._clock.now_ms() + round(LIVES * 1000)
        held |= {token: (asking[token], until) for token in wanted}
        if counted is not None:
            counted += len(wanted)
        written = _Reserved(held, counted, version)
        if (removed or wanted) and not await self._write(bound, written):
            return
        book.ended -= ended
        for token in asking.keys() & held.keys():
            book.asking.pop(token, None)
        if is_full:
            book.refused |= book.asking.keys() & asking.keys()

    async def _count(
        self, bound: Bound, held: dict[str, tuple[str, int]], asking: int
    ) -> tuple[int, bool, int | None]:
        """Count what is there and is being made.

        Returns:
            How many reservations there is room for, whether all that may be made is made, and the
            count; None for one that ended at the bound, which may be raised.
        """
        # Counted last: what is made meanwhile is counted twice, and never missed.
        made, unmade = await bound.count(bound.most), len(held)
        if made + unmade + asking > bound.most:
            names = [name for name, _ in held.values()]
            unmade = sum([not await self._is_there(bound.project, name) for name in names])
            made = await bound.count(bound.most)
        is_full = made >= bound.most
        room = min(bound.most - made - unmade, MOST_HELD - len(held))
        return room, is_full, None if is_full else made + unmade

    async def _read(self, bound: Bound) -> _Reserved:
        record = await self._management.get_record(KIND, bound.project, bound.kind)
        if record is None:
            return _Reserved({}, None, 0)
        now, written = self._clock.now_ms(), json.loads(record.value)
        held = written.get("held", {})
        live = {token: (one, until) for token, (one, until) in held.items() if until > now}
        return _Reserved(live, written.get("counted"), record.version)

    async def _write(self, bound: Bound, reserved: _Reserved) -> bool:
        """Write the reservations; False where another process has written since they were read."""
        try:
            await self._management.put_record(
                KIND,
                bound.project,
                bound.kind,
                json.dumps({"held": reserved.held, "counted": reserved.counted}).encode(),
                expected=reserved.version,
                ttl_ms=KEPT_MS,
            )
        except RecordChanged:
            return False
        return True


class RecordRoom:
    """Room for new records of a kind, of which a project may have `most`.

    `full` is the kind of error, and its text, where there is no room.
    """

    def __init__(
        self,
        management: ManagementStore,
        clock: Clock,
        kind: str,
        most: int,
        full: tuple[type[ZaqarLiteError], str],
    ) -> None:
        self._management = management
        self._kind = kind
        self._most = most
        self._error, self._text = full
        self._reservations = Reservations(management, clock, is_there=self.is_there)

    def held_for(
        self, project: str, name: str, undo: Callable[[], Awaitable[object]]
    ) -> AbstractAsyncContextManager[None]:
        """Hold room for a record while it is made; if that takes too long, `undo` it.

        Raises:
            Unavailable: others have been making such records for too long; or the error of this
                room, if the project has as many records as it may have.
        """
        count = partial(self._count, project)
        bound = Bound(project, self._kind, self._most, count, self._error(self._text))
        return self._reservations.room(bound, name, undo)

    async def is_there(self, project: str, name: str) -> bool:
        """Tell whether there is such a record."""
        return await self._management.get_record(self._kind, project, name) is not None

    async def _count(self, project: str, most: int) -> int:
        return await count_records(self._management, self._kind, project, most=most)
