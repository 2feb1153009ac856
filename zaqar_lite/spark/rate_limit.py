"""One rate for all tasks of a run on a machine, however many of them run at a time.

Tasks run in processes of their own and come and go, so the instant at which the next message may
go stands in a file in the directory for temporary files, under a lock. Each task reserves time for
a few messages there and waits until then.
"""

import fcntl
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from zaqar_lite.client.base_client import chunks

T = TypeVar("T")
_INSTANT = struct.Struct("d")  # of the machine's monotonic clock, which all processes share
_LONGEST = 1.0  # seconds that are reserved at a time


class SharedRateLimit:
    """Limits all tasks of one `run` together to `rate` messages a second."""

    def __init__(self, run: str, rate: float) -> None:
        digest = hashlib.blake2b(f"{os.getuid()}/{run}".encode(), digest_size=16).hexdigest()
        self._path = Path(tempfile.gettempdir()) / f"zaqar-lite-rate-{digest}"
        self._rate = rate

    def limited(self, items: Iterable[T], most: int) -> Iterator[T]:
        """Yield the items at the rate, up to `most` at once."""
        together = max(1, min(most, int(self._rate * _LONGEST)))
        for some in chunks(items, together):
            time.sleep(self._reserve(len(some)))
            yield from some

    def _reserve(self, count: int) -> float:
        """Reserve the time of `count` messages; return the seconds until that time begins."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = file.read(_INSTANT.size)
            now = time.monotonic()
            begin = max(now, _INSTANT.unpack(known)[0]) if len(known) == _INSTANT.size else now
            file.seek(0)
            file.write(_INSTANT.pack(begin + count / self._rate))
        return begin - now

    def end(self) -> None:
        """Forget the run."""
        self._path.unlink(missing_ok=True)
