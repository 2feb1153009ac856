"""Bound what a project uses at a time, such as connections, in all processes together.

A permit is the right to one of them. Processes that share a store lease permits of a project's
quota: a record of the project says how many each process has, and a record of each process is its
heartbeat. Taking a permit that is leased already needs no call to the store. If it needs more, the
process leases more, but all processes together never exceed the quota; permits that it does not
use at its heartbeat are given back. A killed process keeps its permits until its heartbeat expires,
after EXPIRES seconds. While the store is unavailable, each process may use an equal part of the
quota.

The record of a process also holds what it uses, so that a project's whole use can be shown.
"""

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from zaqar_lite.domain.errors import QuotaReached, Unavailable
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.records import Kind, retried
from zaqar_lite.storage.management import ManagementStore

KIND, PROCESS = "seats", "process"
"""The kinds of records; the first has the name that earlier versions gave permits."""
EXPIRES = 20.0
"""Seconds for which a process without a heartbeat keeps what it has leased."""
HEARTBEAT = 4.0
"""Seconds between two heartbeats. Permits that are not used then are given back."""
_SPARE = 8
_MAX_PROCESSES = 1_000
_MOST_PROJECTS, _MOST_REPORTED = 1_000, 40_000
"""The most projects whose use a process reports, and the most characters of the report."""


class ConcurrencyLimit:
    """The permits of one kind in this process; `leases` if other processes use the store too."""

    def __init__(self, kind: str, leases: "ConcurrencyLeases | None" = None) -> None:
        self.kind = kind
        self._leases = leases
        self._used: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are in use here."""
        return self._used.total()

    def count_of(self, project: str) -> int:
        """How many a project uses here."""
        return self._used.get(project, 0)

    def counts(self) -> list[tuple[str, int]]:
        """The projects that use most, and how many permits; without the server's own."""
        most = self._used.most_common(_MOST_PROJECTS)
        return [(name, count) for name, count in most if name != DELIVERIES_PROJECT]

    async def total_of(self, project: str) -> int:
        """How many a project uses in all processes; others reported at most HEARTBEAT seconds ago.

        Raises:
            Unavailable: the reports can't be read.
        """
        own, leases = self.count_of(project), self._leases
        return own if leases is None else own + await leases.used_elsewhere(self.kind, project)

    async def take(self, project: str, quota: int | None) -> bool:
        """Take a permit, which `leave` gives back; return whether one was free."""
        self._used[project] += 1
        if quota is None:
            return True
        used, leases = self._used[project], self._leases
        if leases is None:
            leased = quota
        else:
            leased = leases.leased(self.kind, project)
            if used > leased and used <= quota:
                try:
                    leased = await leases.lease(self.kind, project, quota, used)
                except BaseException:
                    self.leave(project)
                    raise
        if used <= min(leased, quota):
            return True
        self.leave(project)
        return False

    def leave(self, project: str) -> None:
        """Give a permit back."""
        self._used[project] -= 1
        if not self._used[project]:
            del self._used[project]


@dataclass(eq=False, repr=False)
class ConcurrencyLeases(BackgroundWorker):
    """Lease permits for this process in records that all processes update.

    While the store is unavailable, a quota is divided by `workers`.
    """

    management: ManagementStore
    workers: int
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._me = secrets.token_hex(8)
        self._permits = Kind(self.management, KIND, "The permits", dict[str, int])
        self._has: dict[tuple[str, str], int] = {}
        self._stale: set[tuple[str, str]] = set()  # whose record may say more than this has
        self._asking: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._heard_at = float("-inf")
        self._limits: list[ConcurrencyLimit] = []
        self._reported = False  # whether the last sign of life reported any use
        self._work = Background("leasing permits", self._beat, rest=HEARTBEAT)

    def of(self, kind: str) -> ConcurrencyLimit:
        """Make the limit of a kind, whose permits are leased here."""
        made = ConcurrencyLimit(kind, self)
        self._limits.append(made)
        return made

    async def stop(self) -> None:
        """Stop that task and give back all permits, if there were any."""
        await super().stop()
        if self._heard_at > float("-inf"):  # else there is no record, and perhaps no open store
            with LoggedErrors("giving back permits, which will end by themselves"):
                await self.management.delete_record(PROCESS, "", self._me)

    def leased(self, kind: str, project: str) -> int:
        """How many permits this process has."""
        return self._has.get((kind, project), 0)

    async def used_elsewhere(self, kind: str, project: str) -> int:
        """How many permits other processes use, by their latest heartbeats."""
        alive = await self.management.list_records(PROCESS, "", limit=_MAX_PROCESSES)
        reports = [json.loads(one.value) for one in alive if one.name != self._me]
        return sum(used.get(kind, {}).get(project, 0) for used in reports)

    async def lease(self, kind: str, project: str, quota: int, used: int) -> int:
        """Lease the permits that are `used`, or all there are; answer how many this process has."""
        place = kind, project
        lock = self._asking.setdefault(place, asyncio.Lock())
        async with lock:
            has = self._has.get(place, 0)
            if used <= has:
                return has

            def wanted(others: int, _: int) -> int:
                free = max(quota - others, 0)
                return min(free, used + (free - used) // _SPARE)

            try:
                if self.monotonic() - self._heard_at > HEARTBEAT:
                    await self._send_heartbeat()
                return await self._write(place, wanted)
            except Unavailable:
                return max(has, -(-quota // self.workers))

    async def _send_heartbeat(self) -> None:
        begun, uses = self.monotonic(), self._uses()
        # A permit that is still being asked for is reported too; if it is refused, a later
        # heartbeat corrects it.
        self._reported = any(uses.values())
        value = json.dumps(uses).encode()
        await self.management.put_record(
            PROCESS, "", self._me, value, expected=None, ttl_ms=round(EXPIRES * 1000)
        )
        self._heard_at = begun

    def _uses(self) -> dict[str, dict[str, int]]:
        """What this process uses, by kind and project."""
        uses: dict[str, dict[str, int]] = {}
        left = _MOST_REPORTED
        for limit in self._limits:
            used = uses[limit.kind] = {}
            for project, count in limit.counts():
                left -= len(json.dumps({project: count}))
                if left < 0:
                    break
                used[project] = count
        return uses

    @retried("The record of the project's permits")
    async def _write(self, place: tuple[str, str], wanted: Callable[[int, int], int]) -> int:
        """Write how many permits this process has: `wanted(permits of the others, its own)`."""
        kind, project = place
        self._stale.add(place)
        held, version = await self._permits.read(project, kind)
        held = held or {}
        # Read after the leases: a process sends a heartbeat before it leases.
        alive = await self.management.list_records(PROCESS, "", limit=_MAX_PROCESSES)
        live = {one.name for one in alive} - {self._me}
        others = {name: count for name, count in held.items() if name in live}
        own = wanted(sum(others.values()), held.get(self._me, 0))
        new = {**others, **({self._me: own} if own else {})}
        if new:
            await self._permits.put(project, kind, new, version)
        elif version:
            await self._permits.delete(project, kind, version)
        self._stale.discard(place)
        self._keep(place, own)
        return own

    def _keep(self, place: tuple[str, str], own: int) -> None:
        if own:
            self._has[place] = own
        else:
            self._has.pop(place, None)

    async def _beat(self) -> None:
        """Send a heartbeat while permits are in use, and give back those not needed."""
        if self._has and self.monotonic() - self._heard_at > EXPIRES - HEARTBEAT:
            self._stale |= self._has.keys()
            self._has.clear()  # others may have taken the permits: those in use are leased again
        if self._reported or any(self._uses().values()):
            await self._send_heartbeat()
        for limit in self._limits:
            for place in {*self._has, *self._stale}:
                if place[0] == limit.kind:
                    await self._give_back(place, limit)

    async def _give_back(self, place: tuple[str, str], limit: ConcurrencyLimit) -> None:
        async with self._asking.setdefault(place, asyncio.Lock()):
            used, has = limit.count_of(place[1]), self._has.get(place, 0)
            if place not in self._stale and used + used // _SPARE >= has:
                return
            # First, so that nobody here takes what is given back, or what others took meanwhile.
            self._keep(place, min(used, has))
            await self._write(place, lambda _, own: min(used, own))


class Link(Protocol):
    """A client's connection."""

    project: str
    """The project that it was counted for, or empty."""
    lost: bool
    """Whether it has ended."""
    on_lost: Callable[[], None]
    """Called when it ends."""


class ConnectionLimits:
    """Count the connections of projects, and refuse those beyond a quota of all processes."""

    def __init__(self, quotas: Quotas, limit: ConcurrencyLimit) -> None:
        self._quotas = quotas
        self.limit = limit

    async def serve(self, link: Link, project: str) -> None:
        """Serve a request of a project on a connection, counted while any project has a quota.

        Raises:
            QuotaReached: the project has as many other connections as its quota allows.
        """
        if link.project == project or not self._quotas.has_connections:
            return
        quota = self._quotas.of(project).connections
        if not await self.limit.take(project, quota):
            raise QuotaReached(f"{quota} connections", "close some")
        self._leave(link)
        if link.lost:  # else it would be counted for ever
            self.limit.leave(project)
            return
        link.project = project
        link.on_lost = lambda: self._leave(link)

    def _leave(self, link: Link) -> None:
        if link.project:
            self.limit.leave(link.project)
        link.project = ""
