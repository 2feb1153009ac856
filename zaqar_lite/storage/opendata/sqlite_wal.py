"""Find damage in the middle of SQLite's write-ahead log, which SQLite passes over in silence.

SQLite reads the log up to the first frame whose checksum does not match and takes that for the end:
right for the unfinished last transaction of a crash, and wrong for a flipped bit before others
that were acknowledged. A later transaction is written only after the one before is durable, so two
commit frames of the current generation behind the end prove damage.
"""

import shutil
import struct
import time
from pathlib import Path

_HEADER = struct.Struct(">IIIIIIII")
_FRAME = struct.Struct(">IIII")
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
    if size <= _HEADER.size:
        return None
    commits = _commits_behind(wal, taken, size)
    if commits < 2:
        return None
    copy = wal.with_name(f"{wal.name}.damaged-{time.time_ns() // 1_000_000}")
    shutil.copyfile(wal, copy)
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
