"""Write rows as messages, in batch and streaming queries.

A row that was sent stays sent, whatever becomes of its task or job; keys, of rows or of requests,
keep a repetition from storing it twice. The run in a key is the option `runId`, else one of this
query, and in a stream (query, batch), which Spark repeats after a restart.
"""

import fcntl
import hashlib
import json
import socket
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import BadRequest, Client, NewMessage, Rejected, Resend
from zaqar_lite.client.base_client import chunks
from zaqar_lite.spark.messages import InvalidRow, Messages, Row, check, json_of
from zaqar_lite.spark.options import OptionError, Options

MOST_REFUSED = 10_000  # that a task tells of
MOST_LETTER = 16_384  # characters of a row that its letter holds
MOST_REASON = 1_000
_LONGEST = 1.0  # seconds of the rate that are reserved at a time
T = TypeVar("T")
COUNTS = ("rows", "stored", "duplicates", "batches", "bytes", "rejected", "retries")


@dataclass
class Written(WriterCommitMessage):
    """What one task did: of its `rows` each is stored, a duplicate, or rejected.

    `duplicates` are those that the server had already, from an earlier try or another row.
    `refused` tells of the first rows that were refused: the key (null without keys) and why;
    `retries` are requests that were sent again. `first_post` and `last_post` are when its first
    rows came and its last answer, in seconds since 1970; None where there were no rows.
    """

    rows: int = 0
    stored: int = 0
    duplicates: int = 0
    batches: int = 0
    bytes: int = 0
    rejected: int = 0
    retries: int = 0
    first_post: float | None = None
    last_post: float | None = None
    refused: list[dict[str, str | None]] = field(default_factory=list)


class SharedRateLimit:
    """Limits all tasks of one query on a machine together to `rate` messages a second.

    Tasks run in processes of their own and come and go, so the instant at which the next message
    may go (by the machine's monotonic clock) stands in a file in the directory for temporary files,
    under a lock. Each task reserves time for a few messages there and waits until then.
    """

    def __init__(self, rate: float) -> None:
        # A name that no later query has: the clock of its content ends with the machine's uptime.
        self._path = Path(tempfile.gettempdir()) / f"zaqar-lite-rate-{uuid.uuid4().hex}.txt"
        self._rate = rate

    def limited(self, items: Iterable[T], most: int) -> Iterator[T]:
        """Yield the items at the rate, up to `most` at once."""
        together = max(1, min(most, int(self._rate * _LONGEST)))
        for some in chunks(items, together):
            time.sleep(self._reserve(len(some)))
            yield from some

    def _reserve(self, count: int) -> float:
        """Reserve the time of `count` messages; return the seconds until that time begins."""
        self._path.touch()
        with self._path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = time.monotonic()
            begin = max(now, float(file.read() or 0))
            file.seek(0)
            file.write(b"%-24r" % (begin + count / self._rate))  # of one length
        return begin - now

    def end(self) -> None:
        """Forget the query."""
        self._path.unlink(missing_ok=True)


class Sender:
    """Send the rows of a query; pickled to the executors, so it holds no connection."""

    STREAMING = False

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check what can be checked before the first row.

        Raises:
            OptionError: a column is wrong, or the queue ignores the delays that the rows have.
        """
        check(schema, options.idempotency_key)
        if "queue" not in schema.names and len(options.queues) != 1:
            raise OptionError("Name the queue: the option 'queue' or a column 'queue'.")
        self.options = options
        self.run_id = options.run_id or uuid.uuid4().hex
        self.by_queue = "queue" in schema.names
        self._delays = bool(options.delay) or not {"delay", "deliver_at"}.isdisjoint(schema.names)
        self._checked: set[str] = set()
        self._host = socket.gethostname()
        self.rate_limit = SharedRateLimit(options.rate / options.hosts) if options.rate else None
        if self._delays and not self.by_queue:
            with options.client() as client:
                self.check_delay(client, options.queue)

    def check_delay(self, client: Client, queue: str) -> None:
        """Check, once for each queue and before its first row, that it does not ignore delays.

        Raises:
            OptionError: rows have delays, which the queue ignores, and onIgnoredDelay is fail.
        """
        if not self._delays or queue in self._checked or self.options.on_ignored_delay == "warn":
            return
        try:
            ignored = not client.get_queue(queue).get("_default_message_delay")
        except BadRequest:
            return  # no name of a queue: its rows are refused, each by itself
        if ignored:
            raise OptionError(
                f"The rows have delays, and {queue!r} is a normal queue, which ignores them: make "
                "it a delayed one (_default_message_delay above 0), or say onIgnoredDelay=warn."
            )
        self._checked.add(queue)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Post every row of a partition; return what was done.

        Raises:
            InvalidRow: a row can't be a message, and onInvalidRow is fail.
        """
        if self.rate_limit and self.options.hosts == 1 and socket.gethostname() != self._host:
            raise OptionError(
                "The option 'rate' holds for each machine, and tasks run on others than the "
                "driver's: say with 'hosts' how many write, and each takes its share."
            )
        context = TaskContext.get()
        run = _micro_batch(self.run_id, context) if self.STREAMING and context else self.run_id
        resent: list[Resend] = []
        with self.options.client(on_retry=resent.append) as client:
            partition = context.partitionId() if context else 0
            written = _Task(self, client, run, partition).send(iterator)
        written.retries = len(resent)
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Append a line of JSON with the totals of all tasks to the file `reportPath`.

        Spark commits in a process of its own, so a file is the way back to the caller.
        """
        self.abort(messages, batchId)
        if self.options.report_path is None:
            return
        tasks = [one for one in messages if isinstance(one, Written)]
        totals: dict[str, object] = {name: sum(vars(one)[name] for one in tasks) for name in COUNTS}
        totals["first_post"] = min(filter(None, (one.first_post for one in tasks)), default=None)
        totals["last_post"] = max(filter(None, (one.last_post for one in tasks)), default=None)
        totals["refused"] = [row for one in tasks for row in one.refused]
        with Path(self.options.report_path).open("a") as file:
            file.write(json.dumps({"batch": batchId, **totals}) + "\n")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Forget the rate, at the end of a query; what was sent is stored."""
        if self.rate_limit:
            self.rate_limit.end()


class _Task:
    """One task's work: its rows are posted, or refused as the options say."""

    def __init__(self, sender: Sender, client: Client, run: str, partition: int) -> None:
        self._sender = sender
        self._options = sender.options
        self._client = client
        self._run, self._partition = run, partition
        self._scope = f"{run}/{partition}"
        self._written = Written()

    def send(self, batches: Iterator[pa.RecordBatch]) -> Written:
        written = self._written
        rows = self._converted(batches)
        if self._sender.by_queue:
            for number, few in enumerate(rows):
                self._post_by_queue(few, f"{self._scope}/{number}")
        else:
            # One pipeline over all batches: requests are under way while rows are converted.
            everything = (message for few in rows for _, message in few)
            self._post(self._options.queue, everything, self._scope)
        written.rows = written.stored + written.duplicates + written.rejected
        written.last_post = written.first_post and time.time()
        return written

    def _converted(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[Iterator[tuple[str, NewMessage]]]:
        made = Messages(self._options, self._scope)
        for batch in batches:
            self._written.first_post = self._written.first_post or time.time()
            yield made.of(batch, self._refuse)

    def _post_by_queue(self, rows: Iterable[tuple[str, NewMessage]], scope: str) -> None:
        by_queue: dict[str, list[NewMessage]] = {}
        for queue, message in rows:
            by_queue.setdefault(queue, []).append(message)
        for queue, messages in by_queue.items():
            self._sender.check_delay(self._client, queue)
            self._post(queue, messages, scope)

    def _post(self, queue: str, messages: Iterable[NewMessage], scope: str) -> None:
        def rejected(refusal: Rejected[NewMessage]) -> None:
            given = {**asdict(refusal.item), "queue": queue}
            row = {name: value for name, value in given.items() if value is not None}
            row["body"] = bytes(refusal.item.body).decode()
            # Without the request's id: a task that is tried again must give the same letter.
            why = InvalidRow(": ".join(str(one) for one in refusal.reason.args if one))
            self._refuse(row, refusal.item.idempotency_key, why)

        by_request = self._options.keys == "requests"
        scope = hashlib.blake2b(scope.encode(), digest_size=16).hexdigest()  # short, as keys are
        if self._sender.rate_limit is not None:
            messages = self._sender.rate_limit.limited(messages, self._options.batch_size)
        summary = self._client.post_all(
            queue,
            messages,
            batch_size=self._options.batch_size,
            batch_bytes=self._options.batch_bytes,
            in_flight=self._options.concurrency,
            run=scope if by_request else None,
            on_rejected=None if by_request else rejected,
        )
        self._written.stored += summary.messages - summary.duplicates
        self._written.duplicates += summary.duplicates
        self._written.batches += summary.batches
        self._written.bytes += summary.bytes

    def _refuse(self, row: Row, key: str | None, error: InvalidRow) -> None:
        if self._options.on_invalid_row == "fail":
            raise InvalidRow(f"A row can't be a message: {error}. Row: {str(row)[:200]}") from error
        self._written.rejected += 1
        if len(self._written.refused) < MOST_REFUSED:
            self._written.refused.append({"key": key, "reason": str(error)})
        if self._options.reject_path is not None:
            self._write_reject(Path(self._options.reject_path), row, error)
        if self._options.on_invalid_row == "deadletter":
            self._post_letter(row, key, error)

    def _post_letter(self, row: Row, key: str | None, error: InvalidRow) -> None:
        """Post a refused row to the dead-letter queue; for a large row, only where to find it."""
        text = json.dumps(json_of(row), default=str)
        letter: Row = {"reason": str(error)[:MOST_REASON]}
        if len(text) <= MOST_LETTER:
            letter["row"] = json.loads(text)
        else:
            letter |= {
                "bytes": len(text),
                "sha256": hashlib.sha256(str(row.get("body")).encode()).hexdigest(),
                "key": key,
                "run": self._sender.run_id,
                "partition": self._partition,
            }
        content = f"{key} {letter}".encode()  # rows of one key may be refused for several reasons
        own = None if key is None else hashlib.sha256(content).hexdigest()
        self._client.post(self._options.dead_letter_queue or "", letter, idempotency_key=own)

    def _write_reject(self, place: Path, row: Row, error: InvalidRow) -> None:
        """Append to this partition's file of refused rows; another attempt overwrites it."""
        place.mkdir(parents=True, exist_ok=True)
        batch = f"batch-{self._run.rpartition('/')[2]}-" if self._sender.STREAMING else ""
        path = place / f"{batch}part-{self._partition:05d}.jsonl"
        line = json.dumps({"reason": str(error), "row": json_of(row)}, default=str)
        with path.open("w" if self._written.rejected == 1 else "a") as file:
            file.write(line + "\n")


class ZaqarWriter(Sender, DataSourceArrowWriter):
    """Write a batch query; if it fails, what was sent stays: repeat it with the same runId."""


class ZaqarStreamWriter(Sender, DataSourceStreamArrowWriter):
    """Write the micro-batches of a stream: one that fails is repeated with the same keys."""

    STREAMING = True


def _micro_batch(run_id: str, context: TaskContext) -> str:
    """The run that a stream's keys belong to: the query and the batch, which outlive a restart.

    Spark calls them by these names internally; where they are missing the run id stands alone.
    """
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return f"{query}/{batch}" if query and batch is not None else run_id
