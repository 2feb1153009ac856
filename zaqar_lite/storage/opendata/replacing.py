"""Writing a file that takes the place of another one when it is complete."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file beside `target` that takes its place at the end, or goes when something fails.

    The mode of the earlier file stays. What is no file, such as a pipe, is written as it is.

    Raises:
        OSError: a file can't be written.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as there:
            yield there
        return
    target = target.resolve()  # a link goes on leading to its file
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
