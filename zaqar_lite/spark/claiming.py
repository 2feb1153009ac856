"""Stream a queue by claiming: processed messages are deleted, all others are claimed again.

The driver claims a batch, writes it to the ledger, and gives Spark its number. Executors read the
ledger. A thread renews the claims while the batch runs. A batch is acknowledged (its messages are
deleted with their claims) in `commit` and, because Spark calls that only when a next batch is
planned, also at the top of `latestOffset`, for everything up to `start`. A claim that lapsed
meanwhile is counted. Its messages have been processed, so those that no other consumer holds by
then are deleted all the same; the others are left to their holders.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from zaqar_lite.client import ClaimLost, Client, Held, MessageClaimed, ZaqarError
from zaqar_lite.spark.ledger import Ledger, open_directory
from zaqar_lite.spark.options import OptionError, Options
from zaqar_lite.spark.queues import BatchTrigger, check_queues, lag_of
from zaqar_lite.spark.rows import COLUMNS, arrow_schema, columns_of, to_batch

logger = logging.getLogger(__name__)
_ROUND = 64
"""Claims that are made before it is seen how many messages they hold."""
_WAIT = 1.0
"""Seconds that planning a batch waits for a first message; stopping a query takes as long."""
_LAPSED = (
    "%d claims on %r lapsed before their batch was processed; %d messages are held by others and "
    "will be processed again"
)


def claim_messages(client: Client, options: Options, most: int, *, wait: float = 0) -> list[Held]:
    """Claim up to `most` messages, as many as there are; in the order of their first messages.

    Where there are none, wait up to `wait` seconds for the first; one request does that, and the
    others begin when it has some. Claims that were made before an error are given back.
    """
    ended = threading.Event()
    claims: list[Held] = []
    ttl, grace = options.claim_ttl, options.claim_grace
    claim = partial(
        client.create_claim, options.queue, ttl=ttl, grace=grace, details=True, raw=True
    )

    def one(limit: int, wait: float = 0) -> int:
        held = None if ended.is_set() else claim(limit=limit, wait=wait)
        if held is None:
            ended.set()
            return 0
        claims.append(held)
        return len(held.messages)

    try:
        left = most
        if wait and most > 0:
            left -= one(min(client.page_size, most), wait)
        with ThreadPoolExecutor(options.concurrency, "zaqar-claim") as threads:
            while left > 0 and not ended.is_set():
                firsts = range(0, left, client.page_size)[:_ROUND]
                limits = [min(client.page_size, left - first) for first in firsts]
                left -= sum(threads.map(one, limits))
    except BaseException:
        release_claims(client, options.queue, [held.id for held in claims])
        raise
    return sorted(claims, key=lambda held: held.messages[0].id)


def release_claims(client: Client, queue: str, claim_ids: Sequence[str]) -> None:
    """Release claims; one that can't be released is logged, and lapses by itself."""
    for claim_id in claim_ids:
        try:
            client.release_claim(queue, claim_id)
        except ZaqarError as error:
            logger.warning("a claim on %r was not given back, and will lapse: %s", queue, error)


def delete_claimed(
    client: Client, options: Options, claims: Sequence[tuple[str, Sequence[str]]]
) -> list[int]:
    """Delete messages that were processed, by the claims (id, message ids) that hold them.

    If a claim has lapsed, those of its messages are deleted that nobody holds now; one that another
    consumer holds is left to that consumer. Returns for each claim that had lapsed how many those
    are.
    """

    def one(given: tuple[str, Sequence[str]]) -> int | None:
        claim_id, ids = given
        try:
            client.delete_messages(options.queue, ids, claim_ids=[claim_id])
        except ClaimLost:
            return sum(_is_held(client, options.queue, claim_id, one) for one in ids)
        return None

    with ThreadPoolExecutor(options.concurrency, "zaqar-delete") as threads:
        left = list(threads.map(one, [given for given in claims if given[1]]))
    return [count for count in left if count is not None]


def _is_held(client: Client, queue: str, claim_id: str, message_id: str) -> bool:
    """Delete a processed message, unless it is held by another claim; return whether it is."""
    try:
        client.delete_message(queue, message_id, claim_id=claim_id)
    except ClaimLost:
        try:
            client.cancel(queue, message_id)
        except MessageClaimed:
            return True
    return False


class Renewal:
    """Keep claims alive from `add` to `remove`: renew them every `claimRenewal` seconds."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._claims: dict[int, tuple[str, ...]] = {}
        self._ended: threading.Event | None = None

    def add(self, number: int, claim_ids: Iterable[str]) -> None:
        """Renew a batch's claims from now on, in place of those that it had."""
        self._claims[number] = tuple(claim_ids)
        if self._ended is None:
            self._ended = threading.Event()
            threading.Thread(target=self._run, args=(self._ended,), daemon=True).start()

    def remove(self, number: int) -> None:
        """Stop renewing a batch's claims."""
        self._claims.pop(number, None)
        if not self._claims:
            self.stop()

    def stop(self) -> None:
        """Stop the thread."""
        self._claims.clear()
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _run(self, ended: threading.Event) -> None:
        interval = self._options.claim_renewal or self._options.claim_ttl / 3
        over: set[str] = set()
        while not ended.wait(interval):
            held = {one for claims in list(self._claims.values()) for one in claims}
            over &= held  # a claim that ended, with its last message or by time, never comes back
            try:
                with self._options.client() as client:  # by the key that is there now
                    over |= {one for one in held - over if not self._renew(client, one)}
            except OptionError as error:
                logger.warning("claims on %r were not renewed: %s", self._options.queue, error)

    def _renew(self, client: Client, claim_id: str) -> bool:
        """Renew one claim; return whether it is held. Errors are logged; the next round retries."""
        ttl, grace = self._options.claim_ttl, self._options.claim_grace
        try:
            client.renew_claim(self._options.queue, claim_id, ttl=ttl, grace=grace)
        except ClaimLost:
            return False
        except ZaqarError as error:
            logger.warning("a claim was not renewed: %s", error)
        return True


@dataclass
class LedgerPart(InputPartition):
    """Some messages of a batch in the ledger."""

    number: int
    first: int
    count: int


class ClaimStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a queue in micro-batches that are acknowledged once they are processed.

    An offset is the number of a batch and the id of the ledger that it is in.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._queue = options.queue
        self._schema = schema
        self._columns = columns_of(schema)
        self._ledger = Ledger(open_directory(options.state_dir or ""), self._queue)
        self._frozen = False
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
        """Have the query read as many messages as are ready when its first batch is planned."""
        self._frozen = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledge finished batches, then claim the next one and write it to the ledger."""
        first = self._number(start)
        self._acknowledge(first)
        self._release_after(first)
        most = getattr(limit, "max_rows", self._options.max_messages_per_trigger)
        with self._options.client() as client:
            if not self._known:
                check_queues(client, self._options)
                self._known = True
            if self._frozen:
                if self._left is None:
                    self._left = client.stats(self._queue).claimable
                most = min(most, self._left)
            elif self._options.min_messages_per_trigger > 1 and self._trigger.waits(
                client.stats(self._queue).claimable
            ):
                return start
            # An `availableNow` query reads what is there already; any other waits at the server.
            held = claim_messages(client, self._options, most, wait=0 if self._frozen else _WAIT)
        if not held:
            return start
        columns = tuple(dict.fromkeys((*COLUMNS, *self._columns)))
        rows = pa.Table.from_batches([to_batch(one.messages, columns) for one in held])
        if self._left is not None:
            self._left -= rows.num_rows
        claims = [(one.id, [message.id for message in one.messages]) for one in held]
        self._ledger.write(first + 1, claims, rows)
        self._renewal.add(first + 1, dict(claims))
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
                self._renewal.add(number, dict(batch.claims))
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

    def _release_after(self, number: int) -> None:
        """Give back what was claimed for batches that Spark never knew of; it comes again."""
        for unknown in self._ledger.numbers():
            batch = self._ledger.batch(unknown) if unknown > number else None
            if batch is not None:
                with self._options.client() as client:
                    release_claims(client, self._queue, [claim_id for claim_id, _ in batch.claims])
                self._renewal.remove(unknown)
                self._ledger.remove(unknown)

    def _acknowledge(self, upto: int) -> None:
        for number in self._ledger.numbers():
            if number > upto:
                break
            batch = self._ledger.batch(number)
            if batch is not None:
                with self._options.client() as client:
                    left = delete_claimed(client, self._options, batch.claims)
                if left:
                    logger.warning(_LAPSED, len(left), self._queue, sum(left))
            self._renewal.remove(number)
            self._ledger.remove(number)

    def __reduce__(self) -> tuple[object, ...]:
        """Leave the thread and the lock behind: executors read the ledger only."""
        return ClaimStream, (self._options, self._schema)
