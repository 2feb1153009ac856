"""The columns of written rows: their allowed types, and how their values are sent.

A body that is a struct, map or list becomes JSON in one way: fields that are null stay null,
decimals are text (so that no digit is lost), NaN and the infinities are the text "NaN", "Infinity"
and "-Infinity", binary is base64, dates and instants are ISO 8601, an instant with a time zone in
UTC ("2026-11-22T10:30:00.5Z"), keys of maps are text. Spark's `from_json` reads all of it back.
"""

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from zaqar_lite.spark.options import OptionError

COLUMNS = (
    "body", "ttl", "delay", "deliver_at", "queue", "headers", "key", "idempotency_key", "group",
)  # fmt: skip
_WHOLE = (types.IntegralType, types.NullType)
_NUMBER = (*_WHOLE, types.FractionalType)
_NAME = (*_WHOLE, types.StringType, types.BinaryType)
_KINDS: dict[str, tuple[tuple[type[types.DataType], ...], str]] = {
    "ttl": (_WHOLE, "an integer, in seconds"),
    "delay": (_NUMBER, "a number, in seconds"),
    "deliver_at": (
        (types.TimestampType, types.TimestampNTZType, types.DateType, types.StringType),
        "a timestamp, a date (its midnight in UTC) or a string in ISO 8601",
    ),
    "queue": ((types.StringType, types.NullType), "a string"),
    "key": (_NAME, "a string, an integer or UTF-8 in binary"),
    "idempotency_key": (_NAME, "a string, an integer or UTF-8 in binary"),
    "group": (_NAME, "a string, an integer or UTF-8 in binary"),
}
_LEAVES = (
    types.StringType, types.BooleanType, types.NumericType, types.BinaryType, types.DateType,
    types.TimestampType, types.TimestampNTZType, types.NullType,
)  # fmt: skip


class InvalidRow(ValueError):
    """A row that can't be a message; the text says which and why."""


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
        kinds, words = _KINDS.get(name, ((), ""))
        if kinds and not isinstance(field.dataType, kinds):
            raise _wrong(field, words)
    if "headers" in schema.names and not _are_headers(schema["headers"].dataType):
        words = "a map of strings, or an array of structs of key and value"
        raise _wrong(schema["headers"], words)
    if isinstance(schema["body"].dataType, types.BinaryType):
        raise _wrong(schema["body"], "text: cast(body as string)")
    if strange := _strange(schema["body"].dataType):
        raise OptionError(f"The column 'body' holds {strange}, which JSON does not have: cast it.")


def _wrong(field: types.StructField, words: str) -> OptionError:
    return OptionError(
        f"The column {field.name!r} must be {words}, not {field.dataType.simpleString()}."
    )


def _are_headers(kind: types.DataType) -> bool:
    texts = (types.StringType, types.BinaryType)
    if isinstance(kind, types.MapType):
        return isinstance(kind.keyType, types.StringType) and isinstance(kind.valueType, texts)
    entry = kind.elementType if isinstance(kind, types.ArrayType) else None
    if not isinstance(entry, types.StructType) or entry.names != ["key", "value"]:
        return isinstance(kind, types.NullType)
    return isinstance(entry["key"].dataType, types.StringType) and isinstance(
        entry["value"].dataType, texts
    )


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
        InvalidRow: it is not finite.
    """
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
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
    pairs: Any = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif value is not None:
        pairs = [(one["key"], one["value"]) for one in value]
    found = {}
    for name, content in pairs:
        if name is None or content is None:
            raise InvalidRow(f"its header {name!r} is null")
        found[name] = text_of(content)
    if key is not None:
        found["key"] = text_of(key)
    return found if value is not None or key is not None else None


Convert = Callable[[Any], Any]


def json_of(kind: pa.DataType) -> Convert | None:
    """Return a function that turns a value of an Arrow type into JSON's; None if it is one."""
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: json_of(kind.field(i).type) for i in range(kind.num_fields)}
        changed = {name: convert for name, convert in fields.items() if convert is not None}
        return _nullable(lambda row: _struct(row, changed)) if changed else None
    if pa.types.is_map(kind):
        key, item = json_of(kind.key_type) or _key, json_of(kind.item_type) or _same
        return _nullable(lambda pairs: {key(name): item(value) for name, value in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        one = json_of(kind.value_type)
        return one and _nullable(lambda values: [one(value) for value in values])
    found = next((convert for holds, convert in _CONVERSIONS if holds(kind)), None)
    return found and _nullable(found)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _struct(row: dict[str, Any], changed: Mapping[str, Convert]) -> dict[str, Any]:
    return row | {name: convert(row[name]) for name, convert in changed.items()}


def _same(value: object) -> object:
    return value


def _key(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _instant(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, str),
    (pa.types.is_timestamp, _instant),
    (pa.types.is_date, dt.date.isoformat),
    (pa.types.is_binary, lambda value: base64.b64encode(value).decode()),
    (pa.types.is_large_binary, lambda value: base64.b64encode(value).decode()),
)
