"""Opening a SlateDB store: in a bounded time, and in a directory whatever was left of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.storage.opendata.disk import FULL, is_full
from zaqar_lite.storage.opendata.engine import Engine
from zaqar_lite.storage.opendata.slatedb.binding import slatedb
from zaqar_lite.storage.opendata.slatedb.directory import LocalDirectory, repair
from zaqar_lite.storage.opendata.slatedb.manifest import find_files, note_newest
from zaqar_lite.storage.opendata.slatedb.rebuild import finish_exchange, rebuild

_DAMAGE = (
    slatedb.Error.Data,
    slatedb.Error.Invalid,
    slatedb.Error.Internal,
    slatedb.InternalError,
)
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
        why = f"{exc}. Restore it from a backup, or give the server another place."
    return ConfigurationError(f"The SlateDB store at {place} can't be opened: {why}")


async def open_directory(
    local: LocalDirectory,
    admin: slatedb.Admin,
    build: Callable[[], Awaitable[slatedb.Db]],
    target: Engine,
) -> slatedb.Db:
    """Open the store, by `build`; where it is damaged, rebuild it through `target` before.

    Raises:
        ConfigurationError: it is damaged, and can't be rebuilt, or at the next start; says which.
        UnknownVersion: it is damaged, and another release wrote a part of it.
        Unavailable: the rebuilt store could not be written.
        OSError: a file can't be read or written.
        slatedb.Error: anything else that keeps SlateDB from opening it.
        slatedb.InternalError: as above.
    """
    finish_exchange(local.place)
    local.make()
    files, problems = await find_files(local.place, admin)
    is_repaired = bool(problems) and not local.was_closed and repair(local.place)
    if is_repaired:
        files, problems = await find_files(local.place, admin)
    if files is not None and local.was_found_damaged:
        problems.append(f"{local.place}: it was found damaged when it was opened or read before")
    if files is not None and problems:
        await rebuild(local.place, files, problems, target)
    local.note_opened()
    try:
        return await _opened(local, build, is_repaired)
    except _DAMAGE as exc:  # what SlateDB has started by now must not meet another store there
        if files is None:
            raise
        local.note_damage()
        raise ConfigurationError(
            f"The SlateDB store at {local.place} is damaged: {exc}. Start the server again: it "
            "then puts what is intact into a new store."
        ) from exc


async def _opened(
    local: LocalDirectory, build: Callable[[], Awaitable[slatedb.Db]], is_repaired: bool
) -> slatedb.Db:
    try:
        db = await build()
    except slatedb.Error:
        if not is_repaired:
            raise
        db = await build()  # after a lost manifest the first try reports a fence
    note_newest(local.place)
    await local.sync()
    return db
