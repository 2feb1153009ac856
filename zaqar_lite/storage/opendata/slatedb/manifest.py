"""SlateDB's manifests: which one tells the files of a store, where the newest is damaged.

Manifests have no checksums, nor have the files in which the compaction notes its state, so the
crc32 of the newest ones is noted beside them whenever this server knows of new ones. Where the
newest manifest can't be read, or is not what was noted, an older one serves if all its tables are
there: with the tables written since then, and the write-ahead log.
"""

import logging
import zlib
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.slatedb.binding import slatedb
from zaqar_lite.storage.opendata.slatedb.directory import noted_commit
from zaqar_lite.storage.opendata.slatedb.files import Files, files_of, problems_of, with_newer
from zaqar_lite.storage.opendata.slatedb.table import UnknownVersion

logger = logging.getLogger(__name__)
_NOTE = "newest-files"
_CHANGED = "it is not what was written"
_MANIFESTS, _COMPACTIONS = "manifest", "compactions"


def note_newest(place: Path) -> None:
    """Note the crc32 of the newest manifest and of the compaction's newest file.

    Raises:
        OSError: it could not be written.
    """
    newest = [file for folder in (_MANIFESTS, _COMPACTIONS) for file in _all(place, folder)[:1]]
    lines = [f"{file.name} {zlib.crc32(file.read_bytes())}\n" for file in newest]
    written = place / f"{_NOTE}.new"
    written.write_text("".join(lines))
    written.replace(place / _NOTE)


async def find_files(place: Path, admin: slatedb.Admin) -> tuple[Files | None, list[str]]:
    """Find the files of a store, and say what keeps SlateDB from opening it.

    Answers no files where there is no store yet, or no manifest that can be used, which opening
    reports; nor where another release wrote the store: what it holds is SlateDB's to judge.

    Raises:
        ConfigurationError: the newest manifest is damaged, and no other can be used.
        OSError: a file can't be read.
    """
    try:
        return await _find_files(place, admin)
    except UnknownVersion as exc:
        logger.warning("the store is not checked for damage: %s", exc)
        return None, []


async def _find_files(place: Path, admin: slatedb.Admin) -> tuple[Files | None, list[str]]:
    manifests = _all(place, _MANIFESTS)
    if not manifests:
        return None, []
    durable = noted_commit(place)
    newest = await _read(admin, manifests[0])
    is_changed = _is_changed(place, manifests[0])
    if newest is not None and not is_changed:
        files = files_of(place, newest)
        changed = [file for file in _all(place, _COMPACTIONS)[:1] if _is_changed(place, file)]
        return files, [*problems_of(files, durable), *(f"{file}: {_CHANGED}" for file in changed)]
    problem = f"{manifests[0]}: {_CHANGED if is_changed else 'it is damaged'}"
    for file in manifests[1:]:
        older = await _read(admin, file)
        if older is None:
            continue
        files = files_of(place, older)
        if all(table.file.exists() for run in files.runs for table in run):
            files = with_newer(place, files)
            problem += f"; {file.name}, newer tables and the log are used instead"
            return files, [problem, *problems_of(files, durable)]
    if is_changed:
        raise ConfigurationError(
            f"The SlateDB store at {place} can't be opened: {problem}, and no older one can be "
            "used. Restore it from a backup, or give the server another place."
        )
    return None, []


def _all(place: Path, folder: str) -> list[Path]:
    """The files of a folder that are in use, the newest first."""
    return sorted((place / folder).glob(f"*.{folder}"), reverse=True)


async def _read(admin: slatedb.Admin, file: Path) -> slatedb.VersionedManifest | None:
    try:
        return await admin.read_manifest(int(file.stem))
    except (slatedb.Error, slatedb.InternalError, ValueError):
        return None


def _is_changed(place: Path, newest: Path) -> bool:
    try:
        noted = dict(line.split() for line in (place / _NOTE).read_text().splitlines())
    except (FileNotFoundError, ValueError):
        return False
    return noted.get(newest.name, "") not in ("", str(zlib.crc32(newest.read_bytes())))
