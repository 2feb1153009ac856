"""Writing a file that takes the place of another one when it is complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file beside `target` that takes its place at the end, or goes when something fails.

    Only its owner may read it, whatever the earlier file allowed. What is no file, such as a pipe,
    is written as it is.

    Raises:
        OSError: a file can't be written.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as there:
            yield there
        return
    target = target.resolve()  # a link goes on leading to its file
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
