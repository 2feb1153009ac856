"""The schema of what is read, and how messages become rows of it."""

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import StructType

from zaqar_lite.client import DeadLetter, Message
from zaqar_lite.spark.options import OptionError
from zaqar_lite.spark.queues import posted

_TEXT, _WHOLE, _TIME = pa.string(), pa.int32(), pa.timestamp("us", tz="UTC")


def _body(message: Message) -> str | None:
    return None if message.body is None else bytes(message.body).decode()


def _expires(message: Message) -> float | None:
    # Instants from the server are whole seconds; Arrow takes microseconds.
    if message.created is None:
        return None
    return (int(message.created.timestamp()) + int(message.ttl)) * 1_000_000


def _timestamp(message: Message) -> int | dt.datetime | None:
    """When it was posted, to the microsecond where the id tells."""
    at = posted(message.id)
    return message.created if at is None else at


def _letter(read: Callable[[DeadLetter], Any]) -> Callable[[Message], Any]:
    return lambda message: None if message.dead_letter is None else read(message.dead_letter)


_COLUMN: dict[str, tuple[pa.DataType, Callable[[Message], Any]]] = {
    "queue": (_TEXT, lambda m: m.queue),
    "id": (_TEXT, lambda m: m.id),
    "body": (_TEXT, _body),
    "ttl": (_WHOLE, lambda m: int(m.ttl)),
    "age": (_WHOLE, lambda m: int(m.age)),
    "created": (_TIME, lambda m: m.created),
    "expires": (_TIME, _expires),
    "delay_until": (_TIME, lambda m: m.delay_expires),
    "claim_id": (_TEXT, lambda m: m.claim_id),
    "claim_count": (_WHOLE, lambda m: m.claim_count),
    "headers": (
        pa.map_(_TEXT, _TEXT),
        lambda m: None if m.headers is None else list(m.headers.items()),
    ),
    "dlq_source_queue": (_TEXT, _letter(lambda letter: letter.source)),
    "dlq_moved_at": (_TIME, _letter(lambda letter: letter.moved_at)),
    "dlq_claim_count": (_WHOLE, _letter(lambda letter: letter.claim_count)),
    "dlq_last_claim_id": (_TEXT, _letter(lambda letter: letter.last_claim_id)),
    "dlq_last_client_id": (_TEXT, _letter(lambda letter: letter.last_client_id)),
    "checksum": (_TEXT, lambda m: m.checksum),
}
COLUMNS = tuple(_COLUMN)
_ATTEMPT = pa.struct(
    {"number": _WHOLE, "claimed_at": _TIME, "ended_at": _TIME}
    | dict.fromkeys(("outcome", "reason", "detail", "client_id"), _TEXT)
)
# Those that the option `columns` adds.
_COLUMN |= {
    "value": (pa.binary(), lambda m: None if m.body is None else bytes(m.body)),
    "timestamp": (_TIME, _timestamp),
    "key": (_TEXT, lambda m: None if m.headers is None else m.headers.get("key")),
    "attempts": (
        pa.list_(_ATTEMPT),
        lambda m: [
            {name.name: getattr(one, name.name) for name in _ATTEMPT} for one in m.attempts or ()
        ],
    ),
    "failure_count": (_WHOLE, lambda m: m.failure_count),
    "group": (_TEXT, lambda m: m.group),
}


def schema_with(extra: Sequence[str] = ()) -> StructType:
    """Return the schema of a read with these further columns."""
    return from_arrow_schema(arrow_schema([*COLUMNS, *extra]))


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a query reads; it may have asked for fewer than there are.

    Raises:
        OptionError: one is not there, or of another type.
    """
    for field in schema.fields:
        if field.name not in _COLUMN:
            raise OptionError(f"There is no column {field.name!r}; there are {', '.join(_COLUMN)}.")
        known = from_arrow_type(_COLUMN[field.name][0]).simpleString()
        if field.dataType.simpleString() != known:
            raise OptionError(
                f"The column {field.name!r} is {known}, not {field.dataType.simpleString()}: cast "
                "it in the query."
            )
    return tuple(schema.names)


def to_batch(
    messages: Sequence[Message], columns: Sequence[str], *, include_body: bool = True
) -> pa.RecordBatch:
    """Make an Arrow batch of messages (read with details and raw), with these columns."""
    arrays = []
    for name in columns:
        kind, read = _COLUMN[name]
        if name == "body" and not include_body:
            arrays.append(pa.nulls(len(messages), kind))
        else:
            arrays.append(pa.array([read(message) for message in messages], kind))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow types of these columns, as Spark wants them."""
    return pa.schema([(name, _COLUMN[name][0]) for name in columns])
