"""The ledger of a claiming stream: what was claimed, written down before Spark is told of it.

A directory beside the checkpoint, used by one query at a time:

    identity.json    the queue that the ledger belongs to, and the ledger's own id
    lock             held while a query runs
    NNN.json         batch NNN: its claims, and its messages with their bodies

A batch file is written under another name, synced, and renamed; Spark's offset is its number with
the ledger's id. It is removed once its messages are acknowledged.
"""

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import IO, Any

from zaqar_lite.spark.options import OptionError

# A query that was stopped leaves its process running for a moment.
_PATIENCE = 30.0


class Ledger:
    """The batches of one stream that are not acknowledged yet."""

    def __init__(self, directory: Path, queue: str) -> None:
        self._directory = directory
        self._queue = queue
        self._lock: IO[str] | None = None
        self._id = ""

    def open(self, patience: float = _PATIENCE) -> str:
        """Take the directory for this query, and return the ledger's id.

        Raises:
            OptionError: another query uses it (for `patience` seconds), or it is another queue's.
        """
        if self._lock is not None:
            return self._id
        self._directory.mkdir(parents=True, exist_ok=True)
        lock = self._locked(time.monotonic() + patience)
        identity = self._directory / "identity.json"
        if not identity.exists():
            _write(identity, {"queue": self._queue, "id": uuid.uuid4().hex})
        known = json.loads(identity.read_text())
        if known["queue"] != self._queue:
            lock.close()
            raise OptionError(
                f"The stateDir {self._directory} belongs to the queue {known['queue']!r}."
            )
        self._lock, self._id = lock, known["id"]
        return self._id

    def close(self) -> None:
        """Let another query have the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(self, number: int, batch: dict[str, Any]) -> None:
        """Write a batch down, durably."""
        _write(self._path(number), batch)

    def read(self, number: int) -> dict[str, Any] | None:
        """Read a batch; None when it is acknowledged."""
        try:
            found: dict[str, Any] = json.loads(self._path(number).read_text())
        except FileNotFoundError:
            return None
        return found

    def remove(self, number: int) -> None:
        """Forget a batch that is acknowledged."""
        self._path(number).unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """The batches that are there, in order."""
        return sorted(
            int(path.stem) for path in self._directory.glob("*.json") if path.stem.isdigit()
        )

    def _locked(self, until: float) -> IO[str]:
        lock = (self._directory / "lock").open("w")
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                lock.close()
                raise OptionError(
                    f"The stateDir {self._directory} is in use: one query, one stateDir."
                ) from None
            return lock

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}.json"


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself
    finally:
        os.close(directory)
