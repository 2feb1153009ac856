"""The ledger of a claiming stream: what was claimed, written down before Spark is told of it.

A directory beside the checkpoint, used by one query at a time:

    identity.json    the queue that the ledger belongs to, and the ledger's own id
    lock             held while a query runs
    NNN.arrow        the rows of batch NNN, with their bodies
    NNN.json         its claims: a batch is there when this file is

A file is written as a whole, and rows before their claims; Spark's offset is the batch's number
with the ledger's id. Both are removed once the messages are acknowledged, the claims before the
rows.
"""

import json
import uuid
from typing import Any

import pyarrow as pa

from zaqar_lite.spark.files import Files, files_of
from zaqar_lite.spark.options import OptionError

Claims = list[tuple[str, list[str]]]  # a claim's id, and those of its messages

# A query that was stopped leaves its process running for a moment.
_PATIENCE = 30.0
_CHUNK = 10_000  # rows
_IDENTITY = "identity.json"


class Ledger:
    """The batches of one stream that are not acknowledged yet.

    `place` is a path or a URI, or the directory itself.
    """

    def __init__(self, place: str | Files, queue: str) -> None:
        self._place = place
        self._queue = queue
        self._opened: Files | None = None
        self._id = ""

    @property
    def _files(self) -> Files:
        # Made where it is used: a connection can't be pickled.
        if self._opened is None:
            self._opened = files_of(self._place) if isinstance(self._place, str) else self._place
        return self._opened

    def open(self, patience: float = _PATIENCE) -> str:
        """Take the directory for this query, and return the ledger's id.

        Raises:
            OptionError: another query uses it (for `patience` seconds), or it is another queue's.
        """
        if self._id:
            return self._id
        self._files.lock(patience)
        if _IDENTITY not in self._files.names():
            self._files.write(_IDENTITY, _json({"queue": self._queue, "id": uuid.uuid4().hex}))
        known = json.loads(self._files.read(_IDENTITY).to_pybytes())
        if known["queue"] != self._queue:
            self._files.unlock()
            raise OptionError(
                f"The stateDir {self._place} belongs to the queue {known['queue']!r}."
            )
        self._id = known["id"]
        return self._id

    def close(self) -> None:
        """Release the directory, so that another query can open it."""
        self._files.unlock()
        self._id = ""

    def write(self, number: int, claims: Claims, rows: pa.Table) -> None:
        """Write a batch durably.

        Raises:
            OptionError: another query took the directory meanwhile.
        """
        self._files.check()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=_CHUNK)
        self._files.write(_name(number, "arrow"), sink.getvalue())
        self._files.write(_name(number), _json({"rows": rows.num_rows, "claims": claims}))

    def claims(self, number: int) -> Claims | None:
        """Read the claims of a batch; None when it is acknowledged."""
        found = self._claims_file(number)
        return None if found is None else [(claim_id, ids) for claim_id, ids in found["claims"]]

    def count(self, number: int) -> int:
        """Count the rows of a batch; 0 when it is acknowledged."""
        found = self._claims_file(number)
        return 0 if found is None else int(found["rows"])

    def rows(self, number: int, first: int = 0, count: int | None = None) -> pa.Table:
        """Read rows of a batch, on this machine from the file as it lies on the disk.

        Raises:
            FileNotFoundError: it is acknowledged.
        """
        source = self._files.read(_name(number, "arrow"))
        return pa.ipc.open_file(source).read_all().slice(first, count)

    def remove(self, number: int) -> None:
        """Remove a batch that is acknowledged."""
        self._files.remove(_name(number))
        self._files.remove(_name(number, "arrow"))

    def numbers(self) -> list[int]:
        """Return the numbers of the batches in the ledger, in order."""
        found = [name.removesuffix(".json") for name in self._files.names()]
        return sorted(int(name) for name in found if name.isdigit())

    def _claims_file(self, number: int) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._files.read(_name(number)).to_pybytes())
        except FileNotFoundError:
            return None
        return found


def _name(number: int, suffix: str = "json") -> str:
    return f"{number:012d}.{suffix}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
