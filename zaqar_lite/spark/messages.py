"""The messages of rows: bodies are checked, and every row gets its key (the option `keys`).

The column `key` is kept with its message, as the header `key`; equal keys are no duplicates.
A row is identified by the column `idempotency_key`, or by the one that the option `idempotencyKey`
names. A row without one gets a hash of (run, partition, content of the row) and the number of equal
rows before it in the partition. Such a key does not depend on the order of rows, so a task that is
tried again makes the same keys, and equal rows are all stored.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from zaqar_lite.client import NewMessage, RawBody, serialization
from zaqar_lite.spark.columns import (
    COLUMNS,
    InvalidRow,
    headers_of,
    instant_of,
    json_of,
    seconds_of,
    text_of,
)
from zaqar_lite.spark.options import Options

Row = dict[str, Any]
Refuse = Callable[[Row, str | None, InvalidRow], None]


class Messages:
    """Makes the messages of one task's rows; keys differ between scopes (run, partition)."""

    def __init__(self, options: Options, scope: str) -> None:
        self._options = options
        self._default = options.queues[0] if options.queues else None
        self._hash = hashlib.blake2b(scope.encode() + b"\0", digest_size=16)
        self._seen: Counter[bytes] = Counter()

    def of(self, batch: pa.RecordBatch, refuse: Refuse) -> Iterator[tuple[str, NewMessage]]:
        """Yield the queue and message of each row; call `refuse` with each invalid row."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        convert = json_of(columns["body"].type) or (lambda value: value)
        values = {name: column.to_pylist() for name, column in columns.items() if name != "headers"}
        if "headers" in columns:
            values["headers"] = columns["headers"].to_pylist(maps_as_pydicts="lossy")
        named = self._options.idempotency_key
        if named is not None:
            values["idempotency_key"] = values[named]
        # `body` is always there, so the columns that are not may be endless.
        rows = zip(*(values.get(name, repeat(None)) for name in COLUMNS), strict=False)
        for given in rows:
            row = dict(zip(COLUMNS, given, strict=True))
            key: str | None = None
            try:
                key = self._own_key(row)
                body = self._encoded(convert(row["body"]))
                key = key or self._content_key(body, row)
                if goal := row["queue"] or self._default:
                    yield goal, self._message(body, row, key)
                    continue
                wrong = InvalidRow("its queue is null")
            except InvalidRow as error:
                wrong = error
                key = key or self._content_key(repr(row["body"]).encode(), row)
            refuse({name: row.get(name, row["idempotency_key"]) for name in columns}, key, wrong)

    def _message(self, body: RawBody, row: Row, key: str | None) -> NewMessage:
        delay, deliver_at, group = row["delay"], instant_of(row["deliver_at"]), row["group"]
        if delay is None and deliver_at is None:
            delay = self._options.delay
        return NewMessage(
            body=body,
            ttl=self._options.ttl if row["ttl"] is None else row["ttl"],
            delay=seconds_of("delay", delay),
            deliver_at=deliver_at,
            idempotency_key=key,
            headers=headers_of(row["headers"], row["key"]),
            group=None if group is None else text_of(group),
        )

    def _encoded(self, body: Any) -> RawBody:  # noqa: ANN401 - any column type
        """Return a body's JSON; text that is JSON already is spliced as it is, so it is parsed."""
        if isinstance(body, str) and self._options.body_format == "json":
            text = body.encode()
            try:
                serialization.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidRow(
                    f"its body is not JSON ({error}); or say bodyFormat=text"
                ) from None
            return RawBody(text)
        try:
            return RawBody(serialization.dumps(body))
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"its body can't be JSON ({error})") from None

    def _own_key(self, row: Row) -> str | None:
        own = row["idempotency_key"]
        return None if own in {None, ""} or self._options.keys == "none" else text_of(own)

    def _content_key(self, body: bytes, row: Row) -> str | None:
        """Make an idempotency key of a row's body and what else it has, where rows have keys."""
        if self._options.keys != "rows":
            return None
        content = self._hash.copy()
        content.update(body)
        rest = [row[name] for name in _CONTENT]
        if any(value is not None for value in rest):
            headers = row["headers"]
            if isinstance(headers, dict):
                headers = sorted(headers.items())
            content.update(b"\0" + repr((rest, headers)).encode())
        if row["group"] is not None:  # not in `rest`: rows without one keep the keys they had
            content.update(b"\0group" + repr(row["group"]).encode())
        digest = content.digest()
        occurrence = self._seen[digest]
        self._seen[digest] = occurrence + 1
        return f"{digest.hex()}-{occurrence}" if occurrence else digest.hex()


_CONTENT = ("ttl", "delay", "deliver_at", "queue", "key")
