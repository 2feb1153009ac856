"""Stream a queue by claiming: what a batch has processed is deleted, what it has not comes again.

The driver claims a batch, writes it to the ledger, and gives Spark its number. Executors read the
ledger. A thread renews the claims while the batch runs. A batch is acknowledged (its messages are
deleted with their claims) in `commit` and, because Spark calls that only when a next batch is
planned, also at the top of `latestOffset`, for everything up to `start`. A claim that lapsed
meanwhile is counted; what nobody else holds by then is deleted all the same, since it is processed,
and what somebody holds is left to them.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import ClaimLost, Client, MessageClaimed
from zaqar_lite.spark.ledger import Ledger
from zaqar_lite.spark.options import OptionError, Options
from zaqar_lite.spark.renewal import Renewal, renew
from zaqar_lite.spark.rows import from_document, to_document

logger = logging.getLogger(__name__)


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
        self._columns = tuple(schema.names)
        self._ledger = Ledger(Path(options.state_dir or ""), self._queue)
        self._left: int | None = None
        self._renewal = Renewal(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first batch."""
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of a batch."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze how many messages the query will read: as many as can be claimed now."""
        with self._options.client() as client:
            stats = client.stats(self._queue)
        self._left = stats.free if stats.ready is None else stats.ready

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledge what is finished, claim the next batch, write it down."""
        first = self._number(start)
        self._acknowledge(first)
        if pending := self._pending(first):
            return self._offset(pending)
        most = getattr(limit, "max_rows", self._options.max_messages_per_trigger)
        if self._left is not None:
            most = min(most, self._left)
        claims, messages = self._claim(most)
        if not messages:
            return start
        if self._left is not None:
            self._left -= len(messages)
        self._ledger.write(first + 1, {"claims": claims, "messages": messages})
        self._renewal.add(first + 1, claims)
        return self._offset(first + 1)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LedgerPart]:
        """The parts of the batches after `start`, up to `end`."""
        parts = []
        for number in range(self._number(start) + 1, self._number(end) + 1):
            batch = self._ledger.read(number)
            if batch is not None:
                self._renewal.add(number, batch["claims"])
                total = len(batch["messages"])
                size = -(-total // self._options.num_partitions)
                parts += [LedgerPart(number, first, size) for first in range(0, total, size)]
        return parts

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield some messages of the ledger."""
        part = cast(LedgerPart, partition)
        batch = self._ledger.read(part.number)
        messages = batch["messages"] if batch else []
        for message in messages[part.first : part.first + part.count]:
            yield from_document(message, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what is processed."""
        self._acknowledge(self._number(end))

    def stop(self) -> None:
        """Let another query have the ledger; nothing is acknowledged here."""
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
        """Find the last batch that a run claimed and ended before Spark knew of it; 0 for none.

        Spark never saw it, so what has lapsed meanwhile may be dropped: it comes again.
        """
        last = 0
        for number in self._ledger.numbers():
            batch = self._ledger.read(number) if number > after else None
            if batch is None:
                continue
            with self._options.client() as client:
                claims = [one for one in batch["claims"] if renew(client, self._options, one["id"])]
            held = {message_id for one in claims for message_id in one["ids"]}
            messages = [one for one in batch["messages"] if one["id"] in held]
            if messages:
                self._ledger.write(number, {"claims": claims, "messages": messages})
                self._renewal.add(number, claims)
                last = number
            else:
                self._ledger.remove(number)
        return last

    def _claim(self, most: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        claims: list[dict[str, Any]] = []
        messages: list[dict[str, Any]] = []
        with self._options.client() as client:
            while len(messages) < most:
                held = client.create_claim(
                    self._queue,
                    limit=min(self._options.page_size, most - len(messages)),
                    ttl=self._options.claim_ttl,
                    grace=self._options.claim_grace,
                    details=True,
                    raw=True,
                )
                if held is None:
                    break
                claims.append({"id": held.id, "ids": [message.id for message in held.messages]})
                messages += [to_document(message) for message in held.messages]
        return claims, messages

    def _acknowledge(self, upto: int) -> None:
        for number in self._ledger.numbers():
            if number > upto:
                break
            batch = self._ledger.read(number)
            if batch is not None:
                self._delete(batch)
            self._renewal.remove(number)
            self._ledger.remove(number)

    def _delete(self, batch: dict[str, Any]) -> None:
        lapsed = lost = 0
        with self._options.client() as client:
            for claim in batch["claims"]:
                try:
                    client.delete_messages(self._queue, claim["ids"], claim_ids=[claim["id"]])
                except ClaimLost:
                    lapsed += 1
                    lost += sum(not self._delete_one(client, claim["id"], i) for i in claim["ids"])
        if lapsed:
            logger.warning(
                "%d claims on %r lapsed before their batch was processed; %d messages are held by "
                "others and will be processed again",
                lapsed,
                self._queue,
                lost,
            )

    def _delete_one(self, client: Client, claim_id: str, message_id: str) -> bool:
        """Delete a processed message with its claim, else if nobody holds it; tell whether."""
        try:
            client.delete_message(self._queue, message_id, claim_id=claim_id)
        except ClaimLost:
            try:
                client.cancel(self._queue, message_id)
            except MessageClaimed:
                return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Leave the thread and the lock behind: executors read the ledger only."""
        ledger = Ledger(Path(self._options.state_dir or ""), self._queue)
        return {**self.__dict__, "_renewal": Renewal(self._options), "_ledger": ledger}
