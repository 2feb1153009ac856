"""Browse queues without claiming: ranges that the server hands out, read side by side."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNull,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import Client
from zaqar_lite.spark.options import OptionError, Options
from zaqar_lite.spark.rows import to_row


@dataclass
class QueueRange(InputPartition):
    """A part of a queue: after `marker` (None: its beginning) up to `until` (None: its end).

    `expected` is how many messages were there when it was planned, 0 where nobody counted.
    """

    queue: str
    marker: str | None
    until: str | None
    expected: int = 0

    def __post_init__(self) -> None:
        """Give Spark the value that it shows for a partition."""
        super().__init__((self.queue, self.marker, self.until))


class ZaqarReader(DataSourceReader):
    """Read what is in some queues now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if not options.queues:
            raise OptionError("Name what to read: the option 'queue', or 'queues' with commas.")
        self._options = options
        self._columns = tuple(schema.names)
        self._queues: tuple[str, ...] = options.queues

    def partitions(self) -> Sequence[QueueRange]:
        """Ask the server for the ranges of each queue."""
        with self._options.client() as client:
            return [
                QueueRange(queue, part.marker, part.until)
                for queue in self._queues
                for part in client.ranges(queue, self._options.num_partitions)
            ] or [QueueRange(self._queues[0], None, None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the messages of one range."""
        with self._options.client() as client:
            yield from browse(client, self._options, cast(QueueRange, partition), self._columns)


class PushdownReader(ZaqarReader):
    """A reader that takes filters on the queue itself (option `pushdown`).

    Spark refuses a reader that can take filters while
    `spark.sql.python.filterPushdown.enabled` is false, so it is a class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use filters on the queue and `claim_id IS NULL`; Spark checks every one again."""
        for one in filters:
            if isinstance(one, IsNull) and one.attribute == ("claim_id",):
                self._options = dataclasses.replace(self._options, include_claimed=False)
            wanted: set[Any] | None = None
            if isinstance(one, EqualTo) and one.attribute == ("queue",):
                wanted = {one.value}
            elif isinstance(one, In) and one.attribute == ("queue",):
                wanted = set(one.value)
            if wanted is not None:
                self._queues = tuple(q for q in self._queues if q in wanted) or self._queues[:1]
            yield one


def browse(
    client: Client, options: Options, part: QueueRange, columns: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a range; a body that was not asked for is null."""
    blank = [] if options.include_body else [i for i, c in enumerate(columns) if c == "body"]
    for message in client.list_messages(
        part.queue,
        marker=part.marker,
        until=part.until,
        include_claimed=options.include_claimed,
        include_delayed=options.include_delayed,
        details=True,
        raw=True,
    ):
        row = to_row(message, columns)
        if blank:
            row = tuple(None if i in blank else value for i, value in enumerate(row))
        yield row
