"""Opening a SlateDB store: in a bounded time, and in a directory whatever was left of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.storage.opendata.disk import FULL, is_full
from zaqar_lite.storage.opendata.slatedb.binding import slatedb
from zaqar_lite.storage.opendata.slatedb.directory import LocalDirectory, repair

_LOOK = 1.0
_PATIENCE_REMOTE = 60.0
_PATIENCE_LOCAL = 600.0  # the log may be a long one: it grows while there are gaps
T = TypeVar("T")


async def in_time(step: Awaitable[T], local: LocalDirectory | None) -> T:
    """Take a step of the opening; SlateDB itself would try for ever, and say nothing.

    Raises:
        TimeoutError: there is no answer; says for how long, and what to see to.
        OSError: the disk takes nothing, and why.
    """
    patience = _PATIENCE_REMOTE if local is None else _PATIENCE_LOCAL
    task = asyncio.ensure_future(step)
    until = time.monotonic() + patience
    try:
        while time.monotonic() < until:
            await asyncio.wait({task}, timeout=min(_LOOK, patience))
            if task.done():
                return task.result()
            if local is not None:
                await local.try_to_write()
    finally:
        task.cancel()
    place = "AWS_ENDPOINT, AWS_REGION and the network" if local is None else "its disk"
    raise TimeoutError(f"no answer in {patience:g} seconds. See to {place}.")


def cannot_open(place: str, exc: Exception) -> ZaqarLiteError:
    """Say why a store can't be opened, and what to do; one that is silent may answer later."""
    if isinstance(exc, TimeoutError):
        return Unavailable(f"The SlateDB store does not open: {exc}", detail=place)
    if is_full(exc):
        why = f"{FULL}."
    else:
        way_out = "restore it from a backup, or give the server another place."
        why = f"{exc}. It is kept as it is: {way_out}"
    return ConfigurationError(f"The SlateDB store at {place} can't be opened: {why}")


async def open_directory(
    local: LocalDirectory, build: Callable[[], Awaitable[slatedb.Db]]
) -> slatedb.Db:
    """Open the store of a directory, by `build`.

    Raises:
        ConfigurationError: a file that has no checksum of its own is not what was written.
        OSError: a file can't be read or written.
        slatedb.Error: anything else that keeps SlateDB from opening it.
        slatedb.InternalError: as above.
    """
    local.make()
    is_repaired = not local.was_closed and repair(local.place)
    local.check_newest()
    local.note_opened()
    try:
        db = await build()
    except slatedb.Error:
        if not is_repaired:
            raise
        db = await build()  # after a lost manifest the first try reports a fence
    local.note_newest()
    await local.sync()
    return db
