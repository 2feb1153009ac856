"""Find damage in the middle of SQLite's write-ahead log, which SQLite passes over in silence.

SQLite reads the log up to the first frame whose checksum does not match and takes that for the end:
right for the unfinished last transaction of a crash, and wrong for a flipped bit before others
that were acknowledged. A later transaction is written only after the one before is durable, so two
commit frames of the current generation behind the end prove damage.

Where SQLite gives up the database itself, the log is folded into it here, as it would have done.
"""

import os
import shutil
import struct
import time
from array import array
from pathlib import Path

_HEADER = struct.Struct(">IIIIIIII")
_FRAME = struct.Struct(">IIII")
_SUMS = struct.Struct(">II")
_FRAME_SIZE = 24
_SHM_MX_FRAME = 16
_MAGIC = (0x377F0682, 0x377F0683)


def find_damage(database: Path) -> str | None:
    """Tell what SQLite, which has just read the log, did not take from it; None if all is well.

    A damaged log is copied aside before it is written over.
    """
    wal, shm = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        size = wal.stat().st_size
        with shm.open("rb") as file:
            file.seek(_SHM_MX_FRAME)
            taken = int.from_bytes(file.read(4), "little" if _is_little() else "big")
    except FileNotFoundError:
        return None
    return _copy_if_damaged(wal, taken, size)


def fold(database: Path) -> str | None:
    """Write the log's pages into the database and remove the log; answer as `find_damage` does.

    The log goes last, so that a crash leaves it to be folded again.
    """
    wal, shm = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm"))
    damage = None
    if wal.exists():
        taken, page_size, pages = _committed(wal)
        with database.open("r+b") as file, wal.open("rb") as log:
            for number, offset in sorted(pages.items()):
                log.seek(offset)
                file.seek((number - 1) * page_size)
                file.write(log.read(page_size))
            file.flush()
            os.fsync(file.fileno())
        damage = _copy_if_damaged(wal, taken, wal.stat().st_size)
        wal.unlink()
    shm.unlink(missing_ok=True)
    return damage


def _committed(wal: Path) -> tuple[int, int, dict[int, int]]:
    """How many frames SQLite would take, the size of pages, and where the last of each begins."""
    pages: dict[int, int] = {}
    taken = 0
    with wal.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return 0, 0, {}
        magic, _, page_size, _, salt1, salt2, *sums = _HEADER.unpack(head)
        if magic not in _MAGIC or _checksum(head[:24], (0, 0), magic) != tuple(sums):
            return 0, 0, {}
        found: dict[int, int] = {}
        number, state = 0, (sums[0], sums[1])
        while len(frame := file.read(_FRAME_SIZE + page_size)) == _FRAME_SIZE + page_size:
            page, commits, *salts = _FRAME.unpack_from(frame)
            state = _checksum(frame[:8] + frame[_FRAME_SIZE:], state, magic)
            if salts != [salt1, salt2] or _SUMS.unpack_from(frame, 16) != state:
                break
            number += 1
            found[page] = file.tell() - page_size
            if commits:
                pages.update(found)
                found, taken = {}, number
    return taken, page_size, pages


def _checksum(data: bytes, state: tuple[int, int], magic: int) -> tuple[int, int]:
    words = array("I", data)
    if bool(magic & 1) == _is_little():
        words.byteswap()
    one, two = state
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


def _copy_if_damaged(wal: Path, taken: int, size: int) -> str | None:
    if size <= _HEADER.size:
        return None
    commits = _commits_behind(wal, taken, size)
    if commits < 2:
        return None
    copy = wal.with_name(f"{wal.name}.damaged-{time.time_ns() // 1_000_000}")
    shutil.copy(wal, copy)  # with its mode: there are bodies in it
    return (
        f"{wal} is damaged at frame {taken + 1}: {commits} commits behind it could not be read and "
        f"are lost; the log was copied to {copy}"
    )


def _commits_behind(wal: Path, taken: int, size: int) -> int:
    """Count the commit frames of the current generation behind frame `taken`."""
    commits = 0
    with wal.open("rb") as file:
        magic, _, page_size, _, salt1, salt2, _, _ = _HEADER.unpack(file.read(_HEADER.size))
        if magic not in _MAGIC:
            return 0
        step = _FRAME_SIZE + page_size
        for offset in range(_HEADER.size + taken * step, size - step + 1, step):
            file.seek(offset)
            _, pages_after_commit, frame_salt1, frame_salt2 = _FRAME.unpack(file.read(16))
            if (frame_salt1, frame_salt2) == (salt1, salt2) and pages_after_commit:
                commits += 1
    return commits


def _is_little() -> bool:
    return struct.pack("=H", 1) == b"\x01\x00"
