"""A directory that a stream keeps its state in: on this machine, in HDFS, or where Arrow has files.

A path, or a URI as Spark has them: `file:` is this machine; `hdfs:` and `s3a:` (and `s3:`, `gs:`)
are reached without Hadoop's own client, since the process that Spark plans a stream in has no Java.
A file is written as a whole: a reader never sees a part of one.
"""

import contextlib
import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from zaqar_lite.spark.options import OptionError

_OWNER = "lock"


class Files(Protocol):
    """The operations that a ledger needs of its directory."""

    def lock(self, patience: float) -> None:
        """Make the directory, and take it for this query.

        Raises:
            OptionError: another query has it, for `patience` seconds.
        """

    def check(self) -> None:
        """Make sure that this query still owns the directory.

        Raises:
            OptionError: another query took it.
        """

    def unlock(self) -> None:
        """Release the lock, so that another query can take the directory."""

    def names(self) -> list[str]:
        """Return the names of the files in it."""

    def read(self, name: str) -> pa.Buffer:
        """Read a file.

        Raises:
            FileNotFoundError: there is none.
        """

    def write(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write a file durably, in place of one that is there."""

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is no error."""


def files_of(place: str) -> Files:
    """Return the directory that a path or a URI names.

    Raises:
        OptionError: nothing here reads such a URI.
    """
    parts = urlsplit(place)
    if not parts.scheme:
        return LocalFiles(Path(place))
    if parts.scheme == "file":
        return LocalFiles(Path(unquote(parts.path)))
    try:
        if parts.scheme == "hdfs":
            return HdfsFiles(f"hdfs://{parts.netloc}", parts.path)
        return ArrowFiles(*fs.FileSystem.from_uri(place.replace("s3a://", "s3://", 1)))
    except (pa.ArrowException, ImportError, OSError, RuntimeError, ValueError) as error:
        raise OptionError(f"The stateDir {place!r} can't be reached: {error}") from error


class LocalFiles:
    """A directory of this machine, locked as long as the query's process lives."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._lock: IO[str] | None = None

    def lock(self, patience: float) -> None:  # noqa: D102
        self._place.mkdir(parents=True, exist_ok=True)
        lock = (self._place / _OWNER).open("w")
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                lock.close()
                raise OptionError(
                    f"The stateDir {self._place} is in use: one query, one stateDir."
                ) from None
            self._lock = lock
            return

    def check(self) -> None:  # noqa: D102 - the lock is the process's
        return

    def unlock(self) -> None:  # noqa: D102
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def names(self) -> list[str]:  # noqa: D102
        return [path.name for path in self._place.glob("*")]

    def read(self, name: str) -> pa.Buffer:  # noqa: D102
        with pa.memory_map(str(self._place / name)) as source:
            return source.read_buffer()

    def write(self, name: str, content: pa.Buffer | bytes) -> None:  # noqa: D102
        temporary = self._place / f"{name}.new"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._place / name)
        directory = os.open(self._place, os.O_RDONLY)
        try:
            os.fsync(directory)  # the rename itself
        finally:
            os.close(directory)

    def remove(self, name: str) -> None:  # noqa: D102
        (self._place / name).unlink(missing_ok=True)


class SharedFiles(Files):
    """A directory of a file system without locks: the query that opened it last owns it.

    Before each batch that it writes, a query checks that no other has opened it since.
    """

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/")
        self._owner = uuid.uuid4().hex.encode()

    def _make(self) -> None:
        """Make the directory unless it is there."""
        raise NotImplementedError

    def lock(self, patience: float) -> None:  # noqa: D102 - who came before may be dead
        self._make()
        self.write(_OWNER, self._owner)

    def check(self) -> None:  # noqa: D102
        if self.read(_OWNER).to_pybytes() != self._owner:
            raise OptionError(
                f"The stateDir {self._place} was taken by another query: one query, one stateDir."
            )

    def unlock(self) -> None:  # noqa: D102 - the next one takes it
        return


class ArrowFiles(SharedFiles):
    """A directory of one of Arrow's file systems."""

    def __init__(self, system: fs.FileSystem, place: str) -> None:
        super().__init__(place)
        self._system = system

    def _make(self) -> None:
        self._system.create_dir(self._place, recursive=True)

    def names(self) -> list[str]:  # noqa: D102
        found = self._system.get_file_info(fs.FileSelector(self._place, allow_not_found=True))
        return [one.base_name for one in found]

    def read(self, name: str) -> pa.Buffer:  # noqa: D102
        with self._system.open_input_file(f"{self._place}/{name}") as file:
            return file.read_buffer()

    def write(self, name: str, content: pa.Buffer | bytes) -> None:  # noqa: D102
        temporary = f"{self._place}/{name}.new"
        with self._system.open_output_stream(temporary) as file:
            file.write(content)
        self._system.move(temporary, f"{self._place}/{name}")

    def remove(self, name: str) -> None:  # noqa: D102
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._place}/{name}")


class HdfsFiles(SharedFiles):
    """A directory in HDFS, through a client that needs neither Java nor Hadoop's C library.

    Not through Arrow: its own HDFS can't rename over a file that is there, and what it makes of
    fsspec's takes a namenode that does not answer for a file that does not exist.
    """

    def __init__(self, system: str, place: str) -> None:
        try:
            import hdfs_native  # noqa: PLC0415 - only users of HDFS have it
        except ModuleNotFoundError as error:
            raise ImportError("hdfs: needs pip install 'zaqar-lite[spark-hdfs]'") from error
        super().__init__(place)
        self._client = hdfs_native.Client(system)
        self._replacing = hdfs_native.WriteOptions(overwrite=True)

    def _make(self) -> None:
        self._client.mkdirs(self._place, create_parent=True)

    def names(self) -> list[str]:  # noqa: D102
        return [one.path.rpartition("/")[2] for one in self._client.list_status(self._place)]

    def read(self, name: str) -> pa.Buffer:  # noqa: D102
        return pa.py_buffer(self._client.read(f"{self._place}/{name}").read())

    def write(self, name: str, content: pa.Buffer | bytes) -> None:  # noqa: D102
        temporary = f"{self._place}/{name}.new"
        with self._client.create(temporary, self._replacing) as file:
            file.write(content)
        self._client.rename(temporary, f"{self._place}/{name}", overwrite=True)

    def remove(self, name: str) -> None:  # noqa: D102
        self._client.delete(f"{self._place}/{name}")
