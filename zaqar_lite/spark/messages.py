"""The messages of rows: bodies are checked, and every row gets its key (the option `keys`).

A row's key is the column `key`, else a hash of (run, partition, content of the row) and how often
that content came before in the partition. It does not depend on the order of rows, so a task that
is tried again makes the same keys; equal rows stay as many as they were.
"""

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from zaqar_lite.client import NewMessage, RawBody, bodies
from zaqar_lite.spark.options import Options

COLUMNS = ("body", "ttl", "delay", "deliver_at", "queue", "headers", "key")
Row = dict[str, Any]


class InvalidRow(ValueError):
    """A row that can't be a message; the text says which and why."""


Refuse = Callable[[Row, str | None, InvalidRow], None]


class Messages:
    """Make the messages of one task's rows; keys of other scopes (run, partition) differ."""

    def __init__(self, options: Options, scope: str) -> None:
        self._options = options
        self._default = options.queues[0] if options.queues else None
        self._hash = hashlib.blake2b(scope.encode() + b"\0", digest_size=16)
        self._seen: Counter[bytes] = Counter()

    def of(self, batch: pa.RecordBatch, refuse: Refuse) -> Iterator[tuple[str, NewMessage]]:
        """Yield queue and message of each row; `refuse` is told of those that can't be one."""
        columns = {
            name: _values(column)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        # `body` is always there, so the columns that are not may be endless.
        rows = zip(*(columns.get(name, repeat(None)) for name in COLUMNS), strict=False)
        for body, ttl, delay, deliver_at, queue, headers, key in rows:
            rest = (ttl, delay, deliver_at, queue, headers)
            made: str | None = key
            try:
                text, wrong = self._encoded(body), None
            except InvalidRow as error:
                text, wrong = RawBody(repr(body).encode()), error
            if self._options.keys == "none":
                made = None
            elif not key and self._options.keys == "rows":
                made = self._key(text, None if rest == _NOTHING else rest)
            goal = queue or self._default
            if wrong is None and goal:
                yield goal, self._message(text, ttl, delay, deliver_at, headers, made)
            else:
                row = dict(zip(COLUMNS, (body, *rest, key), strict=True))
                given = {name: row[name] for name in batch.schema.names}
                refuse(given, made, wrong or InvalidRow("its queue is null"))

    def _message(  # noqa: PLR0917 - a row's values
        self,
        body: RawBody,
        ttl: int | None,
        delay: int | None,
        deliver_at: dt.datetime | None,
        headers: Row | None,
        key: str | None,
    ) -> NewMessage:
        if delay is None and deliver_at is None:
            delay = self._options.delay
        if deliver_at is not None and deliver_at.tzinfo is None:
            deliver_at = deliver_at.replace(tzinfo=dt.UTC)
        return NewMessage(
            body=body,
            ttl=self._options.ttl if ttl is None else int(ttl),
            delay=None if delay is None else int(delay),
            deliver_at=deliver_at,
            idempotency_key=key,
            headers=headers,
        )

    def _encoded(self, body: Any) -> RawBody:  # noqa: ANN401 - any column type
        """Return a body's JSON; text that is JSON already is spliced as it is, so it is parsed."""
        if isinstance(body, str) and self._options.body_format == "json":
            text = body.encode()
            try:
                bodies.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidRow(
                    f"its body is not JSON ({error}); or say bodyFormat=text"
                ) from None
            return RawBody(text)
        if isinstance(body, bytes):
            raise InvalidRow("its body is binary; cast it to a string")
        try:
            return RawBody(bodies.dumps(body))
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"its body can't be JSON ({error})") from None

    def _key(self, text: bytes, rest: tuple[Any, ...] | None) -> str:
        """Make a row's key of its body and, where there is any, the rest of it."""
        content = self._hash.copy()
        content.update(text)
        if rest is not None:
            *others, headers = rest
            sorted_headers = None if headers is None else sorted(headers.items())
            content.update(b"\0" + repr((others, sorted_headers)).encode())
        digest = content.digest()
        occurrence = self._seen[digest]
        self._seen[digest] = occurrence + 1
        return f"{digest.hex()}-{occurrence}" if occurrence else digest.hex()


_NOTHING = (None,) * 5


def _values(column: pa.Array) -> Sequence[Any]:
    """Return a column's values in Python; maps are objects."""
    values: Sequence[Any] = (
        column.to_pylist()
        if pa.types.is_string(column.type)
        else column.to_pylist(maps_as_pydicts="lossy")
    )
    return values
