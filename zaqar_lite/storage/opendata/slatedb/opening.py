"""Opening a SlateDB store in a local directory, whatever was left of it."""

from collections.abc import Awaitable, Callable

from zaqar_lite.domain.errors import ConfigurationError
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
