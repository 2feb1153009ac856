"""The ledger of a claiming stream: what was claimed, written down before Spark is told of it.

A directory beside the checkpoint, used by one query at a time:

    identity.json    the queue that the ledger belongs to, and the ledger's own id
    lock             held while a query runs
    NNN.arrow        the rows of batch NNN, with their bodies
    NNN.json         its claims: a batch is there when this file is

Rows are written before their claims; Spark's offset is the batch's number with the ledger's id.
Both are removed once the messages are acknowledged, the claims before the rows.

The directory is a path, or a URI as Spark has them: `file:` is this machine; `hdfs:` and `s3a:`
(and `s3:`, `gs:`) are reached without Hadoop's own client, since the process that Spark plans a
stream in has no Java.
"""

import contextlib
import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from zaqar_lite.spark.options import OptionError

Claims = list[tuple[str, list[str]]]  # a claim's id, and those of its messages
# A query that was stopped leaves its process running for a moment.
_PATIENCE = 30.0
_CHUNK = 10_000  # rows
_IDENTITY = "identity.json"
_OWNER = "lock"


class Batch(NamedTuple):
    """A batch that is not acknowledged yet: how many rows it has, and by which claims."""

    rows: int
    claims: Claims


class Directory:
    """A directory on one of Arrow's file systems, where one query keeps its state.

    A file is written as a whole: a reader never sees a part of one. A file system without locks is
    assumed: the query that opened the directory last owns it, and before each batch that it writes
    a query checks that no other has opened it since.
    """

    def __init__(self, system: Any, place: str) -> None:  # noqa: ANN401 - a client of HDFS, too
        self.place = place.rstrip("/")
        self._system = system
        self._owner = uuid.uuid4().hex.encode()

    def lock(self, patience: float) -> None:
        """Make the directory, and take it for this query; who had it may be dead.

        Raises:
            OptionError: another query has it locked, for `patience` seconds.
        """
        self.make()
        self.write(_OWNER, self._owner)

    def check(self) -> None:
        """Make sure that this query still owns the directory.

        Raises:
            OptionError: another query took it.
        """
        if self.read(_OWNER).to_pybytes() != self._owner:
            raise OptionError(
                f"The stateDir {self.place} was taken by another query: one query, one stateDir."
            )

    def unlock(self) -> None:
        """Release the lock, so that another query can take the directory."""

    def make(self) -> None:
        """Make the directory, unless it is there."""
        self._system.create_dir(self.place, recursive=True)

    def names(self) -> list[str]:
        """Return the names of the files in it."""
        found = self._system.get_file_info(fs.FileSelector(self.place, allow_not_found=True))
        return [one.base_name for one in found]

    def read(self, name: str) -> pa.Buffer:
        """Read a file.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._system.open_input_file(f"{self.place}/{name}") as file:
            return file.read_buffer()

    def write(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write a file durably, in place of one that is there."""
        temporary = f"{self.place}/{name}.new"
        with self._system.open_output_stream(temporary) as file:
            file.write(content)
        self._system.move(temporary, f"{self.place}/{name}")

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self.place}/{name}")


class Ledger:
    """The batches of one stream that are not acknowledged yet."""

    def __init__(self, directory: Directory, queue: str) -> None:
        self._directory = directory
        self._queue = queue
        self._id = ""

    def open(self, patience: float = _PATIENCE) -> str:
        """Take the directory for this query, and return the ledger's id.

        Raises:
            OptionError: another query uses it (for `patience` seconds), or it is another queue's.
        """
        if self._id:
            return self._id
        self._directory.lock(patience)
        if _IDENTITY not in self._directory.names():
            made = {"queue": self._queue, "id": uuid.uuid4().hex}
            self._directory.write(_IDENTITY, json.dumps(made).encode())
        known = json.loads(self._directory.read(_IDENTITY).to_pybytes())
        if known["queue"] != self._queue:
            self._directory.unlock()
            place = self._directory.place
            raise OptionError(f"The stateDir {place} belongs to the queue {known['queue']!r}.")
        self._id = known["id"]
        return self._id

    def close(self) -> None:
        """Release the directory, so that another query can open it."""
        self._directory.unlock()
        self._id = ""

    def write(self, number: int, claims: Claims, rows: pa.Table) -> None:
        """Write a batch durably.

        Raises:
            OptionError: another query took the directory meanwhile.
        """
        self._directory.check()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=_CHUNK)
        self._directory.write(_name(number, "arrow"), sink.getvalue())
        batch = {"rows": rows.num_rows, "claims": claims}
        self._directory.write(_name(number), json.dumps(batch).encode())

    def batch(self, number: int) -> Batch | None:
        """Read what a batch consists of; None when it is acknowledged."""
        try:
            found = json.loads(self._directory.read(_name(number)).to_pybytes())
        except FileNotFoundError:
            return None
        return Batch(found["rows"], [(claim_id, ids) for claim_id, ids in found["claims"]])

    def rows(self, number: int, first: int = 0, count: int | None = None) -> pa.Table:
        """Read rows of a batch, on this machine from the file as it lies on the disk.

        Raises:
            FileNotFoundError: it is acknowledged.
        """
        source = self._directory.read(_name(number, "arrow"))
        return pa.ipc.open_file(source).read_all().slice(first, count)

    def remove(self, number: int) -> None:
        """Remove a batch that is acknowledged."""
        self._directory.remove(_name(number))
        self._directory.remove(_name(number, "arrow"))

    def numbers(self) -> list[int]:
        """Return the numbers of the batches in the ledger, in order."""
        found = [name.removesuffix(".json") for name in self._directory.names()]
        return sorted(int(name) for name in found if name.isdigit())


def _name(number: int, suffix: str = "json") -> str:
    return f"{number:012d}.{suffix}"


def open_directory(place: str) -> Directory:
    """Return the directory that a path or a URI names.

    Raises:
        OptionError: nothing here reads such a URI.
    """
    parts = urlsplit(place)
    if parts.scheme in {"", "file"}:
        return LocalDirectory(unquote(parts.path) if parts.scheme else place)
    try:
        if parts.scheme == "hdfs":
            return HdfsDirectory(f"hdfs://{parts.netloc}", parts.path)
        return Directory(*fs.FileSystem.from_uri(place.replace("s3a://", "s3://", 1)))
    except (pa.ArrowException, ImportError, OSError, RuntimeError, ValueError) as error:
        raise OptionError(f"The stateDir {place!r} can't be reached: {error}") from error


class LocalDirectory(Directory):
    """A directory of this machine, locked as long as the query's process lives."""

    def __init__(self, place: str) -> None:
        super().__init__(fs.LocalFileSystem(use_mmap=True), place)
        self._lock: IO[bytes] | None = None

    def lock(self, patience: float) -> None:  # noqa: D102
        self.make()
        lock = Path(self.place, _OWNER).open("wb")  # noqa: SIM115 - it stays open
        until = time.monotonic() + patience
        while self._lock is None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
            except OSError:
                if time.monotonic() >= until:
                    lock.close()
                    raise OptionError(
                        f"The stateDir {self.place} is in use: one query, one stateDir."
                    ) from None
                time.sleep(0.05)

    def check(self) -> None:
        """Do nothing: a lock that is held needs no check."""

    def unlock(self) -> None:  # noqa: D102
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(self, name: str, content: pa.Buffer | bytes) -> None:  # noqa: D102
        temporary = Path(self.place, f"{name}.new")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(Path(self.place, name))
        directory = os.open(self.place, os.O_RDONLY)
        try:
            os.fsync(directory)  # the rename itself
        finally:
            os.close(directory)


class HdfsDirectory(Directory):
    """A directory in HDFS, through a client that needs neither Java nor Hadoop's C library.

    Not through Arrow: its own HDFS can't rename over a file that is there, and what it makes of
    fsspec's takes a namenode that does not answer for a file that does not exist.
    """

    def __init__(self, system: str, place: str) -> None:
        try:
            import hdfs_native  # noqa: PLC0415 - only users of HDFS have it
        except ModuleNotFoundError as error:
            raise ImportError("hdfs: needs pip install 'zaqar-lite[spark-hdfs]'") from error
        super().__init__(hdfs_native.Client(system), place)
        self._replacing = hdfs_native.WriteOptions(overwrite=True)

    def make(self) -> None:  # noqa: D102
        self._system.mkdirs(self.place, create_parent=True)

    def names(self) -> list[str]:  # noqa: D102
        return [one.path.rpartition("/")[2] for one in self._system.list_status(self.place)]

    def read(self, name: str) -> pa.Buffer:  # noqa: D102
        return pa.py_buffer(self._system.read(f"{self.place}/{name}").read())

    def write(self, name: str, content: pa.Buffer | bytes) -> None:  # noqa: D102
        temporary = f"{self.place}/{name}.new"
        with self._system.create(temporary, self._replacing) as file:
            file.write(content)
        self._system.rename(temporary, f"{self.place}/{name}", overwrite=True)

    def remove(self, name: str) -> None:  # noqa: D102
        self._system.delete(f"{self.place}/{name}")
