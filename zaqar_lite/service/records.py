"""Records: what is neither a queue nor a message, such as a subscription, a pool or a schedule.

A `Kind` is all that its service needs of them: read, make within a bound, change with a retry when
another writer was faster, list by pages, count and delete.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import wraps
from random import uniform
from typing import Any, Generic, ParamSpec, TypeVar, cast

import msgspec
from msgspec import Struct

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    NotFound,
    QueueChanged,
    RecordChanged,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.models import QueueRecord, Record, RecordBound
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.storage.management import ManagementStore

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 20
_LONGEST_WAIT = 0.5
"""Seconds between two tries of a change at most."""
PREFIX = b'"\\u0001sealed:1:'
"""How what is sealed begins, so that no reader takes it for what was stored."""
_READ_AT_ONCE = 100
"""Records that are read together: of the largest, which have 64 KiB, that takes 3 ms."""


def retried(
    what: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Repeat a change from its start when another writer was faster, up to TRIES times.

    Those who lost together wait for a while each, longer from try to try, and don't meet again.
    The change reads a record and writes it at the version that it has read. `what` names it in
    the error of the last try, where `{0}` is `self` and `{1}` the first argument behind it.

    Raises:
        Unavailable: the record changed at every try.
    """

    def decorate(act: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(act)
        async def change(*args: P.args, **named: P.kwargs) -> T:
            for tries in range(TRIES):
                try:
                    return await act(*args, **named)
                except (RecordChanged, QueueChanged):
                    longest = min(0.001 * 2**tries, _LONGEST_WAIT)
                    await asyncio.sleep(uniform(0.0, longest))  # noqa: S311 - jitter
            raise Unavailable(f"{what.format(*args, **named)} is being changed too often.")

        return change

    return decorate


async def all_records(
    management: ManagementStore,
    kind: str,
    project: str | None = None,
    *,
    after: tuple[str, str] | None = None,
    most: int | None = None,
    page_size: int = _READ_AT_ONCE,
) -> AsyncIterator[Record]:
    """The live records of a kind behind `after`, of one project or of all, up to `most`.

    They come in the order of project and name, and are read a page at a time; others have their
    turn after each page.
    """
    left = most
    while left is None or left > 0:
        size = page_size if left is None else min(left, page_size)
        page = await management.list_records(kind, project, after=after, limit=size)
        for record in page:
            yield record
        if len(page) < size:
            return
        after = page[-1].project, page[-1].name
        left = None if left is None else left - size
        await asyncio.sleep(0)


async def all_queues(management: ManagementStore, project: str) -> AsyncIterator[QueueRecord]:
    """The records of a project's queues by name, a page at a time; others have their turn."""
    marker: str | None = None
    while True:
        page = await management.list_queues(project, marker=marker, limit=_READ_AT_ONCE)
        for record in page:
            yield record
        if len(page) < _READ_AT_ONCE:
            return
        marker = page[-1].queue.name
        await asyncio.sleep(0)


def is_sealed(body: bytes) -> bool:
    """Tell whether a stored body has been sealed."""
    return body.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class Most:
    """How many records there may be where a bound counts them, and the error where there are.

    `what` names them in that.
    """

    count: int
    error: type[ZaqarLiteError]
    what: str


@dataclass(eq=False, repr=False)
class Kind(Generic[T]):
    """The records of one kind, whose values are JSON of a `form`; `what` names one in errors.

    `encode` and `reads` are for values that are kept in another way, or need the record's name.
    `lives` answers for how many milliseconds a record lives that is written now; None is for ever.
    The bound is that of a project, or of all projects together where they are `of_server`.
    """

    management: ManagementStore
    name: str
    what: str
    form: type[T] | None = None
    most: Most | None = None
    lives: Callable[[T], int | None] = lambda _: None
    of_server: bool = False
    encode: Callable[[T], bytes] = msgspec.json.encode
    reads: Callable[[Record], T] | None = None

    def __post_init__(self) -> None:
        self._decoder = msgspec.json.Decoder(self.form)

    def decode(self, record: Record) -> T:
        """Read the value of a record.

        Raises:
            Unavailable: it is sealed.
        """
        if is_sealed(record.value):  # nobody opened it, for want of a key
            raise Unavailable(
                f"The {record.kind} {record.name} is sealed: set encryption_key_file."
            )
        if self.reads is not None:
            return self.reads(record)
        return cast(T, self._decoder.decode(record.value))

    async def read(self, project: str, name: str) -> tuple[T | None, int]:
        """Read a record and its version; None and 0 where there is none."""
        record = await self.management.get_record(self.name, project, name)
        return (None, 0) if record is None else (self.decode(record), int(record.version))

    async def find(self, project: str, name: str) -> T | None:
        """Read a record, if there is one."""
        return (await self.read(project, name))[0]

    async def get(self, project: str, name: str) -> T:
        """Read a record.

        Raises:
            NotFound: there is none.
        """
        found = await self.find(project, name)
        if found is None:
            raise NotFound(f"{self.what} {name[:64]} does not exist.")
        return found

    async def put(
        self,
        project: str,
        name: str,
        value: T,
        expected: int | None,
        bounds: Sequence[RecordBound] = (),
    ) -> int:
        """Write a record at the version that was read, 0 for a new one; answer the new version.

        Raises:
            RecordChanged: another writer was faster.
            ZaqarLiteError: `reached` of a bound.
        """
        record = await self.management.put_record(
            self.name,
            project,
            name,
            self.encode(value),
            expected=expected,
            ttl_ms=self.lives(value),
            bounds=bounds,
        )
        return record.version

    async def make(self, project: str, name: str, value: T) -> None:
        """Write a new record, within the bound of its kind.

        Raises:
            RecordChanged: there is one of this name.
            ZaqarLiteError: the project has as many as it may have.
        """
        most, bounds = self.most, []
        if most is not None:
            reached = most.error(f"There may be {most.count} {most.what}: delete some.")
            bounds = [RecordBound(most.count, reached, of_server=self.of_server)]
        await self.put(project, name, value, 0, bounds)

    @retried("{0.what} {2:.64}")
    async def write(
        self, project: str, name: str, build: Callable[[T | None], T | Awaitable[T]]
    ) -> tuple[T, bool]:
        """Make a record, or replace the one that `build` is given; answer it and if it is new.

        `build` may be a coroutine function.

        Raises:
            Unavailable: it is being changed too often.
        """
        old, version = await self.read(project, name)
        built = build(old)
        new = await built if isinstance(built, Awaitable) else built
        if not version:
            await self.make(project, name, new)
        elif new is not old:
            await self.put(project, name, new, version)
        return new, not version

    async def change(self, project: str, name: str, change: Callable[[T], T | Awaitable[T]]) -> T:
        """Change a record, exclusive against other changes; answer the new one.

        Raises:
            NotFound: there is none.
            Unavailable: it is being changed too often.
        """

        def build(old: T | None) -> T | Awaitable[T]:
            if old is None:
                raise NotFound(f"{self.what} {name[:64]} does not exist.")
            return change(old)

        return (await self.write(project, name, build))[0]

    async def delete(self, project: str, name: str, expected: int | None = None) -> bool:
        """Delete a record, at a version where one is given; answer whether there was one.

        Raises:
            RecordChanged: it is at another version.
        """
        return await self.management.delete_record(self.name, project, name, expected=expected)

    async def count(self, project: str | None, most: int) -> int:
        """Count the records of a project, or of all, up to `most`."""
        return len([1 async for _ in all_records(self.management, self.name, project, most=most)])

    async def page(
        self,
        project: str,
        after: str | None,
        limit: int | None,
        *,
        prefix: str = "",
        keep: Callable[[T], bool] | None = None,
    ) -> list[T]:
        """List what to `keep` of a project's records after a name: `limit`, or all that are left.

        Clients take an empty page for the end of a list, so records are read until the page is
        full or the list ends. The names begin with `prefix`, which `after` leaves out. What is
        sealed is opened; a damaged record is left out. Others have their turn in between.
        """
        found: list[T] = []
        first, size = (project, prefix + (after or "")), limit or _READ_AT_ONCE
        if keep is not None:
            size = max(size, _READ_AT_ONCE)
        slices = Slices()
        async for record in all_records(
            self.management, self.name, project, after=first, page_size=size
        ):
            if not record.name.startswith(prefix):
                break
            await slices.next_turn()
            values = [self.decode(one) for one in await self.management.opened((record,))]
            found += values if keep is None else filter(keep, values)
            if len(found) == limit:
                break
        return found


@dataclass
class Held(Generic[T]):
    """A record that one process works on: whoever writes it at the version that it read has it."""

    kind: Kind[T]
    project: str
    name: str
    value: T
    version: int

    async def save(self) -> None:
        """Write the value as it is now.

        Raises:
            RecordChanged: another process has written it.
        """
        self.version = await self.kind.put(self.project, self.name, self.value, self.version)

    async def delete(self) -> bool:
        """Delete the record; answer whether there was one.

        Raises:
            RecordChanged: another process has written it.
        """
        return await self.kind.delete(self.project, self.name, self.version)


class Lease(Struct, kw_only=True):
    """A record that one process works on at a time: which one, and until when (ms)."""

    holder: str = ""
    held_until: int = 0


L = TypeVar("L", bound=Lease)


@dataclass(eq=False, repr=False)
class Holder:
    """A process that works on leased records; no others do unless they are `shared`."""

    clock: Clock
    shared: bool = True

    def __post_init__(self) -> None:
        self.name = secrets.token_hex(8)

    def wait_for(self, lease: Lease) -> int:
        """For how long another process still holds a record, in milliseconds.

        Where no other process works on them, the one that held it before has ended.
        """
        if not self.shared or lease.holder == self.name:
            return 0
        return max(lease.held_until - self.clock.now_ms(), 0)

    async def hold(self, held: Held[L], milliseconds: int) -> None:
        """Write a record as it is now, and hold it for some time from now.

        Raises:
            RecordChanged: another process has it.
        """
        held.value.holder, held.value.held_until = self.name, self.clock.now_ms() + milliseconds
        await held.save()
