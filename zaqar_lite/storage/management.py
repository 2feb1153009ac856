"""The contract of a store of records: queues, and whatever else is neither queue nor message.

`base` says what holds for all stores.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.models import (
    QueueRecord,
    QueueRef,
    Record,
    RecordBound,
    Spent,
)
from zaqar_lite.storage.store import Store


class ManagementStore(Store):
    """Queue records: small documents, read by key, listed by name.

    A driver's two stores may share a connection; a server may also take them from two drivers.
    """

    shares_rates: bool = False
    """Whether several processes can share rates by `spend`."""
    expires_alone: bool = False
    """Whether the backend removes expired records by itself, so that `sweep_records` has none."""
    finds_filters: bool = False
    """Whether `filtered_queues` finds them."""

    @abstractmethod
    async def create_queue(
        self, queue: QueueRef, /, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; answer its record, and whether it was created.

        An existing record stays as it is. Of racing creators of one queue exactly one is told True,
        and those of several, up to a hundred at once in a project, do not pass the limit.

        Raises:
            LimitReached: the project has `max_queues` queues already.
        """

    @abstractmethod
    async def get_queue(self, queue: QueueRef, /) -> QueueRecord | None:
        """Read a queue's record."""

    @abstractmethod
    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace metadata and `exposing` of the record at `record.version`; answer the new one.

        Raises:
            QueueChanged: it is at another version, or gone.
        """

    @abstractmethod
    async def delete_queue(self, queue: QueueRef, /, *, version: int) -> None:
        """Delete the record at `version`; no error when it is gone.

        Raises:
            QueueChanged: it is at another version.
        """

    @abstractmethod
    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None = None,
        limit: int,
        name_contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sequence[QueueRecord]:
        """List a project's queues after `marker`, by name in code point order.

        `name_contains` is a literal part of the name; `metadata` holds top-level keys that must
        be equal (`1` and `True` differ). A filter is examined in steps of at most MAX_EXAMINED
        records: it goes on until a step has found a queue or the project ends, so a filtered page
        may be shorter than `limit`, and only an empty one is the end.
        """

    @abstractmethod
    async def count_queues(self, project: str) -> int:
        """Count a project's queues."""

    @abstractmethod
    async def dead_letter_sources(self, target: QueueRef, /, *, limit: int) -> Sequence[str]:
        """Name up to `limit` queues whose `_dead_letter_queue` is `target`, by an index."""

    @abstractmethod
    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find up to `limit` records with `exposing` set, in any project."""

    @abstractmethod
    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        *,
        expected: int | None,
        ttl_ms: int | None = None,
        bounds: Sequence[RecordBound] = (),
    ) -> Record:
        """Write a record in place of the one there is.

        `expected` is the version that the writer has seen: 0 for none, None to write whatever is
        there. Of racing writers with one `expected` exactly one succeeds. The new one lives for
        `ttl_ms`, or until it is deleted; an expired record is as if it were not there, at once.

        A record that is not there yet is made within all `bounds`. Racing makers, up to a hundred
        at once, do not pass one.

        Raises:
            RecordChanged: it is at another version, or there is one, or there is none.
            ZaqarLiteError: `reached` of a bound; nothing was written.
        """

    @abstractmethod
    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        """Read a live record."""

    @abstractmethod
    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        """Delete a record; answer whether there was one.

        Raises:
            RecordChanged: there is one at another version than `expected`.
        """

    @abstractmethod
    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        """List live records of a kind after (project, name), in code point order.

        Of one project, or of all. A page shorter than `limit` is the end. One step examines at
        most MAX_EXAMINED entries, and the driver repeats.
        """

    async def opened(self, records: Sequence[Record]) -> Sequence[Record]:
        """Open what of the listed records lies sealed, where the server has keys.

        A list alone opens nothing, so counting costs nothing, and no record blocks its neighbours.
        One that was damaged is left out, and told in the log.

        Raises:
            Unavailable: a key can't be had now.
        """
        return records

    @abstractmethod
    async def sweep_records(self, limit: int) -> int:
        """Remove up to `limit` expired records of any kind; answer how many."""

    async def spend(self, project: str, spent: Sequence[Spent], seconds: float) -> Sequence[float]:
        """Take tokens from a project's buckets, in one step; answer what each has left.

        A bucket holds at most as many tokens as come in so many seconds, and at least one. It is
        full at first, and may go into debt. Only where `shares_rates`.
        """
        raise Unsupported("This store shares no rates.")

    async def filtered_queues(self, project: str) -> Sequence[QueueRecord]:
        """Find a project's records that have a `_filter` (`finds_filters`; asked on every post)."""
        return ()
