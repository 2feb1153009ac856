"""Stream a queue by claiming: processed messages are deleted, all others are claimed again.

The driver claims a batch, writes it to the ledger, and gives Spark its number. Executors read the
ledger. A thread renews the claims while the batch runs. A batch is acknowledged (its messages are
deleted with their claims) in `commit` and, because Spark calls that only when a next batch is
planned, also at the top of `latestOffset`, for everything up to `start`. A claim that lapsed
meanwhile is counted. Its messages have been processed, so those that no other consumer holds by
then are deleted all the same; the others are left to their holders.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from zaqar_lite.spark.claims import Renewal, claim_messages, delete_claimed, renew_claim
from zaqar_lite.spark.lag import BatchTrigger, lag_of
from zaqar_lite.spark.ledger import Claims, Ledger
from zaqar_lite.spark.options import OptionError, Options
from zaqar_lite.spark.queues import check_queues
from zaqar_lite.spark.rows import COLUMNS, arrow_schema, columns_of, to_batch

logger = logging.getLogger(__name__)
_WAIT = 1.0
"""Seconds that planning a batch waits for a first message; stopping a query takes as long."""


@dataclass
class LedgerPart(InputPartition):
    """Some messages of a batch in the ledger."""

    number: int
    first: int
    count: int

    def __post_init__(self) -> None:
        """Give Spark the value that it shows for a partition."""
        super().__init__((self.number, self.first, self.count))


class ClaimStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a queue in micro-batches that are acknowledged once they are processed.

    An offset is the number of a batch and the id of the ledger that it is in.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._queue = options.queue
        self._columns = columns_of(schema)
        self._ledger = Ledger(options.state_dir or "", self._queue)
        self._left: int | None = None
        self._known = False
        self._trigger = BatchTrigger(options)
        self._renewal = Renewal(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch."""
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the largest size of a batch: `maxMessagesPerTrigger`."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix how many messages the query will read: as many as are ready now."""
        with self._options.client() as client:
            self._left = client.stats(self._queue).claimable

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledge finished batches, then claim the next one and write it to the ledger."""
        first = self._number(start)
        self._acknowledge(first)
        if pending := self._pending(first):
            return self._offset(pending)
        most = getattr(limit, "max_rows", self._options.max_messages_per_trigger)
        if self._left is not None:
            most = min(most, self._left)
        with self._options.client() as client:
            if not self._known:
                check_queues(client, self._options)
                self._known = True
            if self._options.min_messages_per_trigger > 1:
                ready = int(lag_of(client, self._queue, None)["ready"])
                if self._trigger.waits(ready, frozen=self._left is not None):
                    return start
            # An `availableNow` query reads what is there already; any other waits at the server.
            wait = _WAIT if self._left is None else 0
            held = claim_messages(client, self._options, most, wait=wait)
        if not held:
            return start
        columns = tuple(dict.fromkeys((*COLUMNS, *self._columns)))
        rows = pa.Table.from_batches([to_batch(one.messages, columns) for one in held])
        if self._left is not None:
            self._left -= rows.num_rows
        claims = [(one.id, [message.id for message in one.messages]) for one in held]
        self._ledger.write(first + 1, claims, rows)
        self._renewal.add(first + 1, claims)
        return self._offset(first + 1)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return what a query's progress shows: counts of the queue; `ready` can be claimed."""
        with self._options.client() as client:
            return {self._queue: lag_of(client, self._queue, None)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LedgerPart]:
        """Return the parts of the batches after `start`, up to and including `end`."""
        parts = []
        for number in range(self._number(start) + 1, self._number(end) + 1):
            batch = self._ledger.batch(number)
            if batch is not None:
                self._renewal.add(number, batch.claims)
                size = -(-batch.rows // self._options.num_partitions)
                parts += [LedgerPart(number, first, size) for first in range(0, batch.rows, size)]
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one part of the ledger."""
        part = cast(LedgerPart, partition)
        rows = self._ledger.rows(part.number, part.first, part.count)
        # A ledger of an earlier version may lack a column.
        every = [arrow_schema(self._columns).empty_table(), rows]
        rows = pa.concat_tables(every, promote_options="default")
        yield from rows.select(list(self._columns)).to_batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the batches up to `end`."""
        self._acknowledge(self._number(end))

    def stop(self) -> None:
        """Stop renewing claims and release the ledger's lock; nothing is acknowledged here."""
        self._renewal.stop()
        self._ledger.close()

    def _offset(self, number: int) -> dict[str, Any]:
        return {"batch": number, "ledger": self._ledger.open()}

    def _number(self, offset: dict[str, Any]) -> int:
        if offset["ledger"] != self._ledger.open():
            raise OptionError(
                f"The stateDir {self._options.state_dir} is not the one that this checkpoint began "
                "with; keep the two together, or begin with a new checkpoint."
            )
        return int(offset["batch"])

    def _pending(self, after: int) -> int:
        """Find the last batch that was claimed but that Spark never knew of; 0 for none.

        Spark never saw it, so messages whose claims lapsed may be left out: they come again.
        """
        last = 0
        for number in self._ledger.numbers():
            batch = self._ledger.batch(number) if number > after else None
            if batch is None:
                continue
            with self._options.client() as client:
                claims = [one for one in batch.claims if renew_claim(client, self._options, one[0])]
            held = pa.array([message_id for _, ids in claims for message_id in ids], pa.string())
            rows = self._ledger.rows(number)
            rows = rows.filter(pc.is_in(rows["id"], value_set=held))
            if rows.num_rows:
                self._ledger.write(number, claims, rows)
                self._renewal.add(number, claims)
                last = number
            else:
                self._ledger.remove(number)
        return last

    def _acknowledge(self, upto: int) -> None:
        for number in self._ledger.numbers():
            if number > upto:
                break
            batch = self._ledger.batch(number)
            if batch is not None:
                self._delete(batch.claims)
            self._renewal.remove(number)
            self._ledger.remove(number)

    def _delete(self, claims: Claims) -> None:
        with self._options.client() as client:
            deleted = delete_claimed(client, self._options, claims)
        if deleted.lapsed:
            logger.warning(
                "%d claims on %r lapsed before their batch was processed; %d messages are held by "
                "others and will be processed again",
                deleted.lapsed,
                self._queue,
                deleted.lost,
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the thread and the lock behind: executors read the ledger only."""
        ledger = Ledger(self._options.state_dir or "", self._queue)
        return {**self.__dict__, "_renewal": Renewal(self._options), "_ledger": ledger}
