"""Write rows as messages, in batch and streaming queries.

At least once, always: a row that was sent stays sent, whatever becomes of its task or job. With
keys (the default) each row is stored once while the server remembers its key. A row's key is the
column `key`, else a hash of (run, partition, content of the row, occurrence of that content within
the partition). It does not depend on the order of rows, so a task that is tried again makes the
same keys; equal rows stay as many as they were. The run is the option `runId`, else one of this
query, and in a stream (query, batch), which Spark repeats after a restart.
"""

import dataclasses
import datetime as dt
import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from zaqar_lite.client import Client, NewMessage, RawBody, Rejected, Unreachable
from zaqar_lite.client.transports import Transport
from zaqar_lite.client.wire import Request, Response
from zaqar_lite.spark.options import OptionError, Options

COLUMNS = ("body", "ttl", "delay", "deliver_at", "queue", "headers", "key")


class InvalidRow(ValueError):
    """A row that can't be a message; the text says which and why."""


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    rejected: int = 0
    retries: int = 0
    seconds: float = 0.0
    attempt: int = 0


class Sender:
    """Send the rows of one task; pickled to the executors, so it holds no connection."""

    def __init__(self, options: Options, schema: StructType, *, streaming: bool = False) -> None:
        unknown = sorted(set(schema.names) - set(COLUMNS))
        if unknown:
            raise OptionError(
                f"Unknown column {unknown[0]!r}: a row has {', '.join(COLUMNS)}; only 'body' is "
                "needed."
            )
        if "body" not in schema.names:
            raise OptionError("The rows have no column 'body'.")
        if "queue" not in schema.names and len(options.queues) != 1:
            raise OptionError("Name the queue: the option 'queue' or a column 'queue'.")
        if {"delay", "deliver_at"} <= set(schema.names):
            raise OptionError("Give 'delay' or 'deliver_at', not both.")
        self._options = options
        self._run_id = options.run_id or uuid.uuid4().hex
        self._streaming = streaming
        self._rate = options.rate and options.rate / options.num_partitions

    def send(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Post every row; answer what was done.

        Raises:
            InvalidRow: a row can't be a message, and onInvalidRow is fail.
        """
        started = time.monotonic()
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        written = Written(attempt=context.attemptNumber() if context else 0)
        run = _micro_batch(self._run_id, context) if self._streaming else self._run_id
        keys = _Keys(f"{run}/{partition}")
        with self._options.client() as client:
            client.transport = transport = _Counted(client.transport)
            for batch in batches:
                for queue, messages in self._messages(batch, keys, written, client).items():
                    self._post(client, queue, messages, written)
        written.retries = transport.failures
        written.seconds = time.monotonic() - started
        return written

    def report(self, messages: Sequence[WriterCommitMessage | None], batch: int = 0) -> None:
        """Append a line of JSON with the totals of all tasks to the file `reportPath`.

        Spark commits in a process of its own, so a file is the way back to the caller.
        """
        if self._options.report_path is None:
            return
        totals: Counter[str] = Counter(batch=batch)
        for written in messages:
            if isinstance(written, Written):
                totals.update(dataclasses.asdict(written))
        with Path(self._options.report_path).open("a") as file:
            file.write(json.dumps(totals) + "\n")

    def _messages(
        self, batch: pa.RecordBatch, keys: "_Keys", written: Written, client: Client
    ) -> dict[str, list[NewMessage]]:
        """Make the messages of an Arrow batch, by queue."""
        by_queue: dict[str, list[NewMessage]] = {}
        default = self._options.queues[0] if self._options.queues else None
        for row in batch.to_pylist():
            key = (row.get("key") or keys.next(row)) if self._options.keys else None
            try:
                queue, message = self._message(row, default, key)
            except InvalidRow as error:
                self._invalid(client, row, key, error, written)
                continue
            by_queue.setdefault(queue, []).append(message)
        return by_queue

    def _message(
        self, row: dict[str, Any], default: str | None, key: str | None
    ) -> tuple[str, NewMessage]:
        queue = row.get("queue") or default
        if not queue:
            raise InvalidRow("its queue is null")
        delay, deliver_at = row.get("delay"), row.get("deliver_at")
        if delay is None and deliver_at is None:
            delay = self._options.delay
        if isinstance(deliver_at, dt.datetime) and deliver_at.tzinfo is None:
            deliver_at = deliver_at.replace(tzinfo=dt.UTC)
        ttl = row.get("ttl")
        headers = row.get("headers")
        return queue, NewMessage(
            body=self._body(row.get("body")),
            ttl=self._options.ttl if ttl is None else int(ttl),
            delay=None if delay is None else int(delay),
            deliver_at=deliver_at,
            idempotency_key=key,
            headers=None if headers is None else dict(headers),
        )

    def _body(self, body: Any) -> Any:  # noqa: ANN401 - any column type
        if isinstance(body, str) and self._options.body_format == "json":
            try:
                json.loads(body)  # a body is spliced into the request: it must be one JSON value
            except (ValueError, RecursionError) as error:
                raise InvalidRow(
                    f"its body is not JSON ({error}); or say bodyFormat=text"
                ) from None
            return RawBody(body.encode())
        if isinstance(body, bytes):
            raise InvalidRow("its body is binary; cast it to a string")
        return body

    def _post(
        self, client: Client, queue: str, messages: Sequence[NewMessage], written: Written
    ) -> None:
        def rejected(refusal: Rejected[NewMessage]) -> None:
            error = InvalidRow(str(refusal.reason))
            body = refusal.item.body
            text = bytes(body).decode() if isinstance(body, bytes) else body
            row = {"queue": queue, "body": text}
            self._invalid(client, row, refusal.item.idempotency_key, error, written)

        summary = client.post_all(
            queue,
            messages,
            batch_size=self._options.batch_size,
            batch_bytes=self._options.batch_bytes,
            in_flight=self._options.concurrency,
            rate=self._rate,
            on_rejected=rejected,
        )
        written.rows += summary.messages
        written.batches += summary.batches
        written.bytes += summary.bytes

    def _invalid(
        self,
        client: Client,
        row: dict[str, Any],
        key: str | None,
        error: InvalidRow,
        written: Written,
    ) -> None:
        if self._options.on_invalid_row == "fail":
            raise InvalidRow(f"A row can't be a message: {error}. Row: {str(row)[:200]}") from error
        written.rejected += 1
        if self._options.reject_path is not None:
            self._write_reject(Path(self._options.reject_path), row, error, written)
        if self._options.on_invalid_row == "deadletter" and self._options.dead_letter_queue:
            letter = {"reason": str(error), "row": _plain(row)}
            plain = json.loads(json.dumps(letter, default=str))
            digest = hashlib.sha256(key.encode()).hexdigest() if key is not None else None
            client.post(self._options.dead_letter_queue, plain, idempotency_key=digest)

    @staticmethod
    def _write_reject(
        place: Path, row: dict[str, Any], error: InvalidRow, written: Written
    ) -> None:
        """Append to this partition's file of refused rows; another attempt begins it anew."""
        place.mkdir(parents=True, exist_ok=True)
        context = TaskContext.get()
        path = place / f"part-{context.partitionId() if context else 0:05d}.jsonl"
        line = json.dumps({"reason": str(error), "row": _plain(row)}, default=str)
        with path.open("w" if written.rejected == 1 else "a") as file:
            file.write(line + "\n")


class ZaqarWriter(DataSourceArrowWriter):
    """Write a batch query."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send one partition."""
        return self._sender.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write down what was done (option `reportPath`); what was sent is stored already."""
        self._sender.report(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: what was sent stays, and the same runId makes a repetition harmless."""


class ZaqarStreamWriter(DataSourceStreamArrowWriter):
    """Write the micro-batches of a streaming query."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send one partition of a micro-batch."""
        return self._sender.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write down what was done (option `reportPath`); what was sent is stored already."""
        self._sender.report(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark repeats the batch with the same number, and so with the same keys."""


class _Counted:
    """A transport that counts what has to be sent again; threads share it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._failures: list[None] = []

    @property
    def failures(self) -> int:
        """Requests that got no answer, or were told to come again."""
        return len(self._failures)

    def send(self, base: str, request: Request) -> Response:
        try:
            response = self._transport.send(base, request)
        except Unreachable:
            self._failures.append(None)
            raise
        if response.status in {429, 503}:
            self._failures.append(None)
        return response

    def close(self) -> None:
        self._transport.close()


class _Keys:
    """Keys of rows by content and occurrence."""

    def __init__(self, scope: str) -> None:
        self._scope = scope.encode()
        self._seen: Counter[bytes] = Counter()

    def next(self, row: dict[str, Any]) -> str:
        text = json.dumps(_plain(row), sort_keys=True, default=str).encode()
        content = hashlib.blake2b(text, digest_size=16).digest()
        occurrence = self._seen[content]
        self._seen[content] += 1
        digest = hashlib.blake2b(digest_size=24)
        digest.update(self._scope + b"\0" + content + b"\0" + str(occurrence).encode())
        return digest.hexdigest()


def _micro_batch(run_id: str, context: TaskContext | None) -> str:
    """The run that a stream's keys belong to: the query and the batch, which outlive a restart.

    Spark calls them by these names internally; where they are missing the run id stands alone.
    """
    if context is None:
        return run_id
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return f"{query}/{batch}" if query and batch is not None else run_id


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its map as an object."""
    headers = row.get("headers")
    return row if headers is None else {**row, "headers": dict(headers)}
