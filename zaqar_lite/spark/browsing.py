"""Browse queues without claiming, in a batch or in a stream.

A batch reads ranges that the server computes, side by side. A stream reads by marker: an offset
holds the marker of each queue's last read.

A stream is restart-safe: Spark's checkpoint holds the markers. A queue is not a log: what expired
or was deleted before it was read is missed. With `failOnDataLoss` (the default) a stream fails when
messages that it had planned to read are gone; without, it goes on. Delayed messages are read when
they are posted, not when they are due (`includeDelayed`), so that none hides behind the marker.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNull,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import Client, Message
from zaqar_lite.client.base_client import chunks
from zaqar_lite.spark.options import OptionError, Options
from zaqar_lite.spark.queues import BatchTrigger, lag_of, marker_at, queues_to_read
from zaqar_lite.spark.rows import columns_of, to_batch

_LOOK_AGAIN = 10.0
"""Seconds between two looks at which queues match a pattern."""


@dataclass
class QueueRange(InputPartition):
    """A part of a queue: after `marker` (None: its beginning) up to `until` (None: its end).

    `expected` is how many messages were there when it was planned, 0 where nobody counted. With
    `ids` it is these messages, wherever they are.
    """

    queue: str
    marker: str | None
    until: str | None
    expected: int = 0
    ids: tuple[str, ...] | None = None


class ZaqarReader(DataSourceReader):
    """Read what is in some queues now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(schema)
        self._wanted: set[str] | None = None
        self._ids: tuple[str, ...] | None = None

    def partitions(self) -> Sequence[QueueRange]:
        """Ask the server for the ranges of each queue."""
        with self._options.client() as client:
            queues = queues_to_read(client, self._options)
            if self._wanted is not None:
                queues = tuple(queue for queue in queues if queue in self._wanted)
            if self._ids is not None:
                return [QueueRange(one, None, None, ids=self._ids) for one in queues] or _NOTHING
            return [
                QueueRange(queue, part.marker, part.until)
                for queue in queues
                for part in client.ranges(queue, self._options.num_partitions)
            ] or _NOTHING

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range."""
        with self._options.client() as client:
            yield from browse(client, self._options, cast(QueueRange, partition), self._columns)


class PushdownReader(ZaqarReader):
    """A reader that takes filters on the queue itself (option `pushdown`).

    Spark refuses a reader that can take filters while
    `spark.sql.python.filterPushdown.enabled` is false, so it is a class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use `queue` and `id` with = or IN, and `claim_id IS NULL`; Spark checks each one again.

        The server finds messages by their ids; it has no search by time or content.
        """
        for one in filters:
            if isinstance(one, IsNull) and one.attribute == ("claim_id",):
                self._options = msgspec.structs.replace(self._options, include_claimed=False)
            wanted = _wanted(one)
            if wanted is not None and one.attribute == ("queue",):  # type: ignore[attr-defined]
                self._wanted = wanted if self._wanted is None else self._wanted & wanted
            elif wanted is not None and self._options.include_delayed:
                known = wanted if self._ids is None else wanted.intersection(self._ids)
                self._ids = tuple(sorted(filter(_ID.fullmatch, known)))
            yield one


_NOTHING = [QueueRange("", None, None, ids=())]
"""What Spark is given where nothing is to be read: for an empty list, too, it runs a task."""
_ID = re.compile(r"[0-9A-Za-z-]+")
_TOGETHER = 1_000
"""Messages in one Arrow batch."""


def _wanted(one: Filter) -> set[str] | None:
    """Return the values that a filter on the queue or the id allows; None for any other filter."""
    if not isinstance(one, EqualTo | In) or one.attribute not in {("queue",), ("id",)}:
        return None
    values = one.value if isinstance(one, In) else [one.value]
    return {value for value in values if isinstance(value, str)}


def browse(
    client: Client, options: Options, part: QueueRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range; a body that was not asked for is null."""
    messages: Iterator[Message]
    if part.ids is not None:
        messages = client.get_messages(part.queue, part.ids, details=True, raw=True)
    else:
        messages = client.list_messages(
            part.queue,
            marker=part.marker,
            until=part.until,
            include_claimed=options.include_claimed,
            include_delayed=options.include_delayed,
            details=True,
            raw=True,
        )
    for together in chunks(messages, _TOGETHER):
        yield to_batch(together, columns, include_body=options.include_body)


class DataLoss(RuntimeError):
    """A batch is incomplete: messages expired or were deleted after it was planned."""


class BrowseStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read queues in micro-batches of at most `maxMessagesPerTrigger` messages.

    An offset is `{"markers": {queue: marker}, "counts": {queue: messages of this batch}}`.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(schema)
        self._targets: dict[str, str] | None = None
        self._queues: tuple[str, ...] = options.queues
        self._looked: float | None = None
        self._read: Mapping[str, str] = {}
        self._trigger = BatchTrigger(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new stream begins: `startingPosition` as a marker for each queue."""
        self._look()
        start = self._options.starting_position
        if start == "latest":
            markers = self._newest()
        else:
            first = "" if start == "earliest" else marker_at(start)
            markers = dict.fromkeys(self._queues, first)
        return {"markers": markers, "counts": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the largest size of a batch: `maxMessagesPerTrigger`."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the markers after the next batch, in which each queue has its share."""
        self._look()
        known = self._markers(start)
        markers = {queue: known.get(queue, "") for queue in self._queues}
        most = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", None)
        counts: dict[str, int] = {}
        left = most
        with self._options.client() as client:
            for number, queue in enumerate(self._queues):
                share = left and -(-left // (len(self._queues) - number))
                marker, count = self._after(client, queue, markers[queue], share)
                if count:
                    markers[queue], counts[queue] = marker, count
                left = None if left is None else left - count
        self._read = markers
        # Spark compares offsets as text: only what is new may differ from `start`.
        frozen = self._targets is not None
        if not counts or (not frozen and self._trigger.waits(sum(counts.values()))):
            return start
        return {"markers": markers, "counts": counts}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return what a query's progress shows: counts of each queue and the stream's lag."""
        with self._options.client() as client:
            return {queue: lag_of(client, queue, self._read.get(queue)) for queue in self._queues}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[QueueRange]:
        """Return one range for each queue of a batch, which keeps the order within a queue."""
        before, after = self._markers(start), self._markers(end)
        return [
            QueueRange(queue, before.get(queue) or None, marker, end["counts"].get(queue, 0))
            for queue, marker in after.items()
            if marker != before.get(queue, "")
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch.

        Raises:
            DataLoss: fewer than were planned, and failOnDataLoss is on.
        """
        part, seen = cast(QueueRange, partition), 0
        with self._options.client() as client:
            for rows in browse(client, self._options, part, self._columns):
                seen += rows.num_rows
                yield rows
        expected = part.expected
        if seen < expected and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{expected - seen} of {expected} messages of {part.queue!r} were gone before "
                "they were read (expired or deleted). Set failOnDataLoss=false to go on without."
            )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze the end of the query at the last messages that are there now."""
        self._targets = self._newest()

    def _after(self, client: Client, queue: str, marker: str, most: int | None) -> tuple[str, int]:
        """Return the marker after the next messages of a queue, and how many they are."""
        until = None if self._targets is None else self._targets.get(queue, "")
        count = 0
        while until != "" and (most is None or count < most):
            size = client.page_size
            page = client.list_page(
                queue,
                marker=marker or None,
                until=until,
                limit=size if most is None else min(size, most - count),
                include_claimed=self._options.include_claimed,
                include_delayed=self._options.include_delayed,
                raw=True,
            )
            if not page.messages or page.marker is None:
                break
            marker, count = page.marker, count + len(page.messages)
        return marker, count

    def _newest(self) -> dict[str, str]:
        self._look()
        with self._options.client() as client:
            newest = {queue: client.stats(queue).newest for queue in self._queues}
        return {queue: "" if one is None else one.message_id for queue, one in newest.items()}

    def _look(self) -> None:
        """Ask which queues there are: once, or every ten seconds where a pattern chooses them.

        A new one is read from its beginning, wherever the stream began; a deleted one is forgotten.
        """
        if self._looked is not None and self._options.queue_pattern is None:
            return
        if self._looked is None or time.monotonic() - self._looked >= _LOOK_AGAIN:
            with self._options.client() as client:
                first = self._looked is None
                self._queues = queues_to_read(client, self._options, may_be_none=not first)
            self._looked = time.monotonic()

    def _markers(self, offset: dict[str, Any]) -> dict[str, str]:
        """Return the markers of an offset by queue; a queue that has none begins at its start."""
        markers: dict[str, str] = offset["markers"]
        for queue in markers:
            if queue not in self._queues and self._options.queue_pattern is None:
                raise OptionError(
                    f"The checkpoint is of the queue {queue!r}, which is not in "
                    f"{', '.join(self._queues)}: give every query a checkpoint of its own."
                )
        return markers
