"""Browse queues without claiming: the server computes ranges, which are read in parallel."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNull,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import Client, Message
from zaqar_lite.client.base_client import chunks
from zaqar_lite.spark.options import Options
from zaqar_lite.spark.queues import named, queues_to_read
from zaqar_lite.spark.rows import columns_of, to_batch


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

    def __post_init__(self) -> None:
        """Give Spark the value that it shows for a partition."""
        super().__init__((self.queue, self.marker, self.until))


class ZaqarReader(DataSourceReader):
    """Read what is in some queues now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        named(options)
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
                return [
                    QueueRange(queue, None, None, ids=self._ids) for queue in queues
                ] or _NOTHING
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
