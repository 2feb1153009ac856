"""Stream a queue by marker, without claiming: the offset is the marker of the last message read.

Restart-safe: Spark's checkpoint holds the markers. A queue is not a log: what expired or was
deleted before it was read is missed. With `failOnDataLoss` (the default) a stream fails when
messages that it had planned to read are gone; without, it goes on. Delayed messages are read when
they are posted, not when they are due (`includeDelayed`), so that none hides behind the marker.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import Client
from zaqar_lite.spark.options import OptionError, Options
from zaqar_lite.spark.reader import QueueRange, browse
from zaqar_lite.spark.rows import columns_of


class DataLoss(RuntimeError):
    """Messages that a batch was planned with are gone."""


class BrowseStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a queue in micro-batches of at most `maxMessagesPerTrigger` messages."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._queue = options.queue
        self._columns = columns_of(schema)
        self._target: str | None = None
        self._known = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first message, or after the last that is there now."""
        self._present()
        marker = "" if self._options.starting_position == "earliest" else self._last()
        return {"queue": self._queue, "marker": marker, "count": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of a batch."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The marker after the next messages: as many as the limit allows."""
        self._check(start)
        self._present()
        most = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", None)
        if self._target == "":
            return start
        marker, count = start["marker"], 0
        with self._options.client() as client:
            while most is None or count < most:
                size = self._options.page_size
                if most is not None:
                    size = min(size, most - count)
                found, following = self._page(client, marker, size)
                if not found or following is None:
                    break
                marker, count = following, count + found
        # Spark compares offsets as text: only what is new may differ from `start`.
        return {"queue": self._queue, "marker": marker, "count": count} if count else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[QueueRange]:
        """One range a batch: its size is bounded, and order is kept."""
        self._check(start)
        self._check(end)
        if start["marker"] == end["marker"]:
            return []
        return [QueueRange(self._queue, start["marker"] or None, end["marker"], end["count"])]

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
        """Freeze the end of the query at the last message that is there now."""
        self._target = self._last()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: nothing was claimed."""

    def _page(self, client: Client, marker: str, size: int) -> tuple[int, str | None]:
        page = client.list_page(
            self._queue,
            marker=marker or None,
            until=self._target,
            limit=size,
            include_claimed=self._options.include_claimed,
            include_delayed=self._options.include_delayed,
            raw=True,
        )
        return len(page.messages), page.marker

    def _last(self) -> str:
        with self._options.client() as client:
            newest = client.stats(self._queue).newest
        return "" if newest is None else newest.href.rsplit("/", 1)[1]

    def _present(self) -> None:
        """Ask once whether the queue is there."""
        if not self._known:
            with self._options.client() as client:
                self._options.check_queues(client)
            self._known = True

    def _check(self, offset: dict[str, Any]) -> None:
        if offset["queue"] != self._queue:
            raise OptionError(
                f"The checkpoint is of the queue {offset['queue']!r}, not of {self._queue!r}: give "
                "every query a checkpoint of its own."
            )
