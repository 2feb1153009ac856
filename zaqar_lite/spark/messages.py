"""The messages of written rows: which columns a row may have, how they are sent, and its key.

The column `key` is kept with its message, as the header `key`; equal keys are no duplicates.
A row is identified by the column `idempotency_key`, or by the one that the option `idempotencyKey`
names. A row without one gets a hash of (run, partition, content of the row) and the number of equal
rows before it in the partition. Such a key does not depend on the order of rows, so a task that is
tried again makes the same keys, and equal rows are all stored.
"""

import base64
import datetime as dt
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from zaqar_lite.client import NewMessage, RawBody, serialization
from zaqar_lite.spark.options import OptionError, Options

COLUMNS = (
    "body", "ttl", "delay", "deliver_at", "queue", "headers", "key", "idempotency_key", "group",
)  # fmt: skip
_WHOLE = (types.IntegralType, types.NullType)
_TEXTS = (types.StringType, types.BinaryType)
_INSTANTS = (types.TimestampType, types.TimestampNTZType, types.DateType, types.StringType)
_LEAVES = (
    types.StringType, types.BooleanType, types.NumericType, types.BinaryType, types.DateType,
    types.TimestampType, types.TimestampNTZType, types.NullType,
)  # fmt: skip
_BESIDE = tuple(name for name in COLUMNS if name not in {"body", "idempotency_key"})
_PAIR = itemgetter("key", "value")  # of a header as Kafka has it


class InvalidRow(ValueError):
    """A row that can't be a message; the text says which and why."""


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
        try:
            values = batch.to_pydict(maps_as_pydicts="lossy")
        except (OverflowError, ValueError) as error:  # an instant beyond the year 9999, say
            if batch.num_rows == 1:
                refuse({}, None, InvalidRow(f"Python has no value for what it holds: {error}"))
                return
            for number in range(batch.num_rows):
                yield from self.of(batch.slice(number, 1), refuse)
            return
        names = tuple(values)
        if (named := self._options.idempotency_key) is not None:
            values["idempotency_key"] = values[named]
        # `body` is always there, so the columns that are not may be endless.
        rows = zip(*(values.get(name, repeat(None)) for name in COLUMNS), strict=False)
        for given in rows:
            row = dict(zip(COLUMNS, given, strict=True))
            key: str | None = None
            try:
                key = self._own_key(row)
                body = self._encoded(row["body"])
                key = key or self._content_key(body, row)
                if goal := row["queue"] or self._default:
                    yield goal, self._message(body, row, key)
                    continue
                wrong = InvalidRow("its queue is null")
            except InvalidRow as error:
                wrong = error
                key = key or self._content_key(repr(row["body"]).encode(), row)
            refuse({name: row.get(name, row["idempotency_key"]) for name in names}, key, wrong)

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
                raise InvalidRow(f"its body is no JSON ({error}); or say bodyFormat=text") from None
            return RawBody(text)
        try:
            return RawBody(serialization.dumps(json_of(body)))
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
        rest = {name: row[name] for name in _BESIDE if row[name] is not None}
        if rest:
            if isinstance(row["headers"], dict):
                rest["headers"] = sorted(row["headers"].items())
            content.update(b"\0" + repr(rest).encode())
        digest = content.digest()
        occurrence = self._seen[digest]
        self._seen[digest] = occurrence + 1
        return f"{digest.hex()}-{occurrence}" if occurrence else digest.hex()


def check(schema: types.StructType, named: str | None) -> None:
    """Check names and types of the columns; `named` is the option `idempotencyKey`.

    Raises:
        OptionError: one is unknown, missing or of a wrong type.
    """
    if named is not None and named not in schema.names:
        raise OptionError(
            f"The option 'idempotencyKey' names the column {named!r}, which is not there."
        )
    unknown = sorted(set(schema.names) - {*COLUMNS, named})
    if unknown:
        raise OptionError(
            f"Unknown column {unknown[0]!r}: a row has {', '.join(COLUMNS)}; only 'body' is needed."
        )
    if "body" not in schema.names:
        raise OptionError("The rows have no column 'body'.")
    if {"delay", "deliver_at"} <= set(schema.names):
        raise OptionError("Give 'delay' or 'deliver_at', not both.")
    for field in schema.fields:
        name = "idempotency_key" if field.name == named else field.name
        fits, words = _KINDS[name]
        if not fits(field.dataType):
            raise OptionError(
                f"The column {field.name!r} must be {words}, not {field.dataType.simpleString()}."
            )
    if strange := _strange(schema["body"].dataType):
        raise OptionError(f"The column 'body' holds {strange}, which JSON does not have: cast it.")


def _is(*kinds: type[types.DataType]) -> Callable[[types.DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


def _are_headers(kind: types.DataType) -> bool:
    if isinstance(kind, types.MapType):
        return isinstance(kind.keyType, types.StringType) and isinstance(kind.valueType, _TEXTS)
    entry = kind.elementType if isinstance(kind, types.ArrayType) else None
    if not isinstance(entry, types.StructType) or entry.names != ["key", "value"]:
        return isinstance(kind, types.NullType)
    return isinstance(entry["key"].dataType, types.StringType) and isinstance(
        entry["value"].dataType, _TEXTS
    )


_KINDS: dict[str, tuple[Callable[[types.DataType], bool], str]] = {
    "body": (lambda kind: not isinstance(kind, types.BinaryType), "text: cast(body as string)"),
    "ttl": (_is(*_WHOLE), "an integer, in seconds"),
    "delay": (_is(*_WHOLE, types.FractionalType), "a number, in seconds"),
    "deliver_at": (
        _is(*_INSTANTS),
        "a timestamp, a date (its midnight in UTC) or a string in ISO 8601",
    ),
    "queue": (_is(types.StringType, types.NullType), "a string"),
    "headers": (_are_headers, "a map of strings, or an array of structs of key and value"),
    **dict.fromkeys(
        ("key", "idempotency_key", "group"),
        (_is(*_WHOLE, *_TEXTS), "a string, an integer or UTF-8 in binary"),
    ),
}


def _strange(kind: types.DataType) -> str | None:
    """Return a type, within the given one, that JSON can't express; None if there is none."""
    if isinstance(kind, types.StructType):
        inner: Sequence[types.DataType] = [field.dataType for field in kind.fields]
    elif isinstance(kind, types.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, types.MapType):
        inner = [kind.keyType, kind.valueType]
        if isinstance(kind.keyType, types.StructType | types.ArrayType):
            return f"keys of {kind.keyType.simpleString()}"
    else:
        return None if isinstance(kind, _LEAVES) else kind.simpleString()
    return next(filter(None, map(_strange, inner)), None)


def text_of(value: object) -> str:
    """Return the text of a key, a group or a header.

    Raises:
        InvalidRow: it is binary and not UTF-8.
    """
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRow("a key, a group or a header is binary and not UTF-8") from None


def seconds_of(name: str, value: float | Decimal | None) -> int | None:
    """Return seconds as a whole number, rounded up: what is delayed is never early.

    Raises:
        InvalidRow: it is not finite, or beyond what JSON's readers take.
    """
    if value is None or isinstance(value, int):
        return value
    if not -1e18 < value < 1e18:
        raise InvalidRow(f"its {name} is {value}")
    return math.ceil(value)


def instant_of(value: dt.date | str | None) -> dt.datetime | None:
    """Return an instant; what has no time zone is in UTC.

    Raises:
        InvalidRow: a string is no instant.
    """
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRow(f"its deliver_at is no instant in ISO 8601: {value!r}") from None
    if value is not None and not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=dt.UTC)


def headers_of(
    value: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, key: object
) -> dict[str, str] | None:
    """Return a message's headers, with the column `key`; the last of two with one name counts.

    Raises:
        InvalidRow: a value is null, or binary and not UTF-8.
    """
    if value is None and key is None:
        return None
    found = {}
    pairs: Any = value.items() if isinstance(value, Mapping) else map(_PAIR, value or ())
    for name, content in pairs:
        if name is None or content is None:
            raise InvalidRow(f"its header {name!r} is null")
        found[name] = text_of(content)
    return found if key is None else found | {"key": text_of(key)}


def json_of(value: Any) -> Any:  # noqa: ANN401 - any column type
    """Return what a body says for a value that JSON lacks, within other values too.

    The guide lists them. The SDK itself writes dates, instants without a time zone and decimals.
    """
    if isinstance(value, dict):
        return {_key(json_of(name)): json_of(one) for name, one in value.items()}
    if isinstance(value, list):
        return [json_of(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _key(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
