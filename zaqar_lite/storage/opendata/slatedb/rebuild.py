"""Putting what is intact of a damaged SlateDB directory into a new one, in the old one's place.

    slatedb.rebuilding    is written; is thrown away at the next start
    slatedb.rebuilt       is complete and synced; takes the place of the old one
    slatedb.damaged-<ms>  the old one, which is kept

These are renames one after the other, so a crash leaves the old directory in its place, or a
complete new one and none in its place.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.engine import Batch, Engine
from zaqar_lite.storage.opendata.slatedb.directory import complete_place, syncfs
from zaqar_lite.storage.opendata.slatedb.files import Files, Salvaged
from zaqar_lite.storage.opendata.slatedb.pages import without_older_pages

logger = logging.getLogger(__name__)
FIRST = b"\x01"
"""Below every record; what is below this is the engine's own."""
LOSSES = b"\x00rebuilt"
"""The key of what was lost, a JSON list: in a rebuilt store until that has been dealt with."""
_ROWS = 1_000
_BYTES = 1_048_576


def writing_place(place: Path) -> Path:
    """Where the new directory is written."""
    return place.with_name(place.name + ".rebuilding")


def finish_exchange(place: Path) -> None:
    """Finish what a crash has interrupted, or throw it away where the old directory is in place.

    Raises:
        OSError: that failed.
    """
    complete = complete_place(place)
    if complete.exists() and not place.exists():
        complete.rename(place)
        _sync(place.parent)
        logger.warning("%s was rebuilt before a crash, and is in its place now", place)
    for left in (complete, writing_place(place)):
        if left.exists():
            shutil.rmtree(left)


async def rebuild(place: Path, files: Files, problems: Sequence[str], target: Engine) -> None:
    """Write what is intact in the files through `target`, and exchange the directories.

    Raises:
        ConfigurationError: nothing can be read, or there is no room.
        UnknownVersion: another release wrote a file.
        Unavailable: it could not be written.
        OSError: a file can't be read, or a directory not renamed.
    """
    size = _size(place)
    for problem in problems:
        logger.error("damaged: %s", problem)
    if shutil.disk_usage(place).free < size:
        raise ConfigurationError(
            f"The SlateDB store at {place} is damaged ({problems[0]}), and the disk has no room to "
            f"put what is intact beside it: free {size} bytes and start the server again."
        )
    logger.warning("rebuilding %s from what is intact of %d bytes", place, size)
    salvaged = Salvaged(files)
    writing_place(place).mkdir(mode=0o700)
    try:
        count = await _fill(target, salvaged, problems)
        if not count:
            raise ConfigurationError(
                f"The SlateDB store at {place} can't be opened: {problems[0]}, and no record can "
                "be read. Restore it from a backup, or give the server another place."
            )
    except BaseException:
        shutil.rmtree(writing_place(place), ignore_errors=True)
        raise
    kept = _exchange(place)
    logger.error("rebuilt %s with %d records; the damaged one is kept in %s", place, count, kept)


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


async def _fill(target: Engine, salvaged: Salvaged, problems: Sequence[str]) -> int:
    """Write the records and what is lost of them; answer how many there are."""
    await target.open()
    try:
        count = await _write(salvaged, target)
        for loss in salvaged.losses:
            logger.error("damaged: %s", loss)
        named = json.dumps([*problems, *salvaged.losses]).encode()
        await target.commit(Batch({LOSSES: named}, ()))
    finally:
        await target.close()
    return count


async def _write(salvaged: Salvaged, target: Engine) -> int:
    count = size = 0
    puts: dict[bytes, bytes] = {}
    for key, _, value in without_older_pages(salvaged.rows(), salvaged.losses.append):
        if key < FIRST or value is None:
            continue
        puts[key] = value
        count += 1
        size += len(value)
        if len(puts) == _ROWS or size > _BYTES:
            await target.commit(Batch(puts, ()))
            puts, size = {}, 0
    if puts:
        await target.commit(Batch(puts, ()))
    return count


def _exchange(place: Path) -> Path:
    kept = place.with_name(f"{place.name}.damaged-{time.time_ns() // 1_000_000}")
    complete = complete_place(place)
    _sync(place.parent)
    for before, after in (
        (writing_place(place), complete),
        (place, kept),
        (complete, place),
    ):
        before.rename(after)
        _sync(place.parent)
    return kept


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs(descriptor)
    finally:
        os.close(descriptor)
