"""The ledger of a claiming stream: what was claimed, written down before Spark is told of it.

A directory beside the checkpoint, used by one query at a time:

    identity.json    the queue that the ledger belongs to, and the ledger's own id
    lock             held while a query runs
    NNN.arrow        the rows of batch NNN, with their bodies
    NNN.json         its claims: a batch is there when this file is

Files are written under another name, synced, and renamed, the rows before the claims; Spark's
offset is the batch's number with the ledger's id. They are removed once the messages are
acknowledged, the claims before the rows.
"""

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from zaqar_lite.spark.options import OptionError

Claims = list[tuple[str, list[str]]]  # a claim's id, and those of its messages

# A query that was stopped leaves its process running for a moment.
_PATIENCE = 30.0
_CHUNK = 10_000  # rows


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
            _write(identity, _json({"queue": self._queue, "id": uuid.uuid4().hex}))
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

    def write(self, number: int, claims: Claims, rows: pa.Table) -> None:
        """Write a batch down, durably."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=_CHUNK)
        _write(self._path(number, "arrow"), sink.getvalue())
        _write(self._path(number), _json({"rows": rows.num_rows, "claims": claims}))

    def claims(self, number: int) -> Claims | None:
        """Read the claims of a batch; None when it is acknowledged."""
        found = self._claims_file(number)
        return None if found is None else [(claim_id, ids) for claim_id, ids in found["claims"]]

    def count(self, number: int) -> int:
        """Count the rows of a batch; 0 when it is acknowledged."""
        found = self._claims_file(number)
        return 0 if found is None else int(found["rows"])

    def rows(self, number: int, first: int = 0, count: int | None = None) -> pa.Table:
        """Read rows of a batch, from the file as it lies on the disk.

        Raises:
            FileNotFoundError: it is acknowledged.
        """
        with pa.memory_map(str(self._path(number, "arrow"))) as source:
            return pa.ipc.open_file(source).read_all().slice(first, count)

    def remove(self, number: int) -> None:
        """Forget a batch that is acknowledged."""
        self._path(number).unlink(missing_ok=True)
        self._path(number, "arrow").unlink(missing_ok=True)

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

    def _claims_file(self, number: int) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._path(number).read_bytes())
        except FileNotFoundError:
            return None
        return found

    def _path(self, number: int, suffix: str = "json") -> Path:
        return self._directory / f"{number:012d}.{suffix}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _write(path: Path, content: Any) -> None:  # noqa: ANN401 - bytes, or a buffer of Arrow
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself
    finally:
        os.close(directory)
