"""What every service of records does: repeat a change that lost a race, and read page by page."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from zaqar_lite.domain.errors import QueueChanged, RecordChanged, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import Record
from zaqar_lite.storage.management import ManagementStore

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 20
_READ_AT_ONCE = 100
"""Records that are read together once those of a first page were not enough."""
_DECODED_AT_ONCE = 65_536
"""Bytes of records that are decoded in one step: about a millisecond."""


def retried(
    what: str, error: type[ZaqarLiteError] = Unavailable
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Repeat a change from its start when another writer was faster, up to TRIES times.

    The change reads a record and writes it at the version that it has read. `what` names it in
    the error of the last try, where `{1}` is the first argument of the call behind `self`.

    Raises:
        Unavailable: the record changed at every try; another `error` if one is named.
    """

    def decorate(act: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(act)
        async def change(*args: P.args, **named: P.kwargs) -> T:
            for _ in range(TRIES):
                try:
                    return await act(*args, **named)
                except (RecordChanged, QueueChanged):
                    continue
            raise error(f"{what.format(*args, **named)} is being changed too often.")

        return change

    return decorate


async def all_records(
    management: ManagementStore,
    kind: str,
    project: str | None = None,
    *,
    after: tuple[str, str] | None = None,
    most: int | None = None,
    page_size: int = 1_000,
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


async def full_page(
    management: ManagementStore,
    kind: str,
    project: str,
    show: Callable[[Sequence[Record]], Awaitable[Sequence[T]]],
    *,
    after: str,
    limit: int | None,
    prefix: str = "",
) -> list[T]:
    """What the records of a project after a name show: `limit` things, or all that are left.

    `show` leaves out what can't or shall not be shown, in the order of the records. Clients take
    an empty page for the end of a list, so records are read until the page is full or the list
    ends. The names begin with `prefix`, and so does `after`.
    """
    found: list[T] = []
    size = limit or _READ_AT_ONCE
    while True:
        page = await management.list_records(kind, project, after=(project, after), limit=size)
        named = [record for record in page if record.name.startswith(prefix)]
        found += await show(named)
        is_full = limit is not None and len(found) >= limit
        if is_full or len(named) < size:
            return found[:limit]
        after, size = page[-1].name, max(size, _READ_AT_ONCE)
        await asyncio.sleep(0)


class Decoding:
    """Decodes records one after the other, so that others have their turn after each 64 KiB."""

    def __init__(self) -> None:
        self._size = 0

    async def decode(self, record: Record, decode: Callable[[Record], T]) -> T:
        """Decode a record."""
        self._size += len(record.value)
        if self._size >= _DECODED_AT_ONCE:
            self._size = 0
            await asyncio.sleep(0)
        return decode(record)

    async def all(self, records: Sequence[Record], decode: Callable[[Record], T]) -> list[T]:
        """Decode records."""
        return [await self.decode(record, decode) for record in records]


async def count_records(
    management: ManagementStore, kind: str, project: str | None, *, most: int
) -> int:
    """Count the live records of a kind in a project, or in all, up to `most`."""
    return len([None async for _ in all_records(management, kind, project, most=most)])
