"""What columns may be, and how their values are sent."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_type

from tests.server import ServerProcess
from zaqar_lite.client import Client, NewMessage
from zaqar_lite.spark.messages import InvalidRow, Messages, check
from zaqar_lite.spark.options import OptionError, parse
from zaqar_lite.spark.writer import Sender

TEXT = types.StringType()


def messages(
    kinds: dict[str, pa.DataType], *rows: dict[str, Any], **given: str
) -> list[NewMessage]:
    """Make the messages of rows; none of them may be refused."""
    options = parse({"endpoint": "http://127.0.0.1:1", "queue": "q", **given})
    batch = pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(list(kinds.items())))

    def refuse(row: dict[str, Any], key: str | None, error: InvalidRow) -> None:
        raise AssertionError((row, key, error))

    return [message for _, message in Messages(options, "run/0").of(batch, refuse)]


def test_a_struct_has_one_encoding() -> None:
    fields = {
        "price": pa.decimal128(38, 2),
        "ratio": pa.float64(),
        "none": pa.float32(),
        "at": pa.timestamp("us", tz="America/New_York"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "raw": pa.binary(),
        "by_hour": pa.map_(pa.timestamp("us"), pa.bool_()),
        "by_day": pa.map_(pa.date32(), pa.list_(pa.struct([("x", pa.float64())]))),
    }
    at = dt.datetime(2026, 11, 22, 10, 30, 0, 500_000, tzinfo=dt.UTC)
    day = dt.date(2026, 11, 22)
    row = {
        "price": Decimal("123456789012345678901234567890.10"),
        "ratio": float("nan"),
        "none": None,
        "at": at,
        "local": at.replace(tzinfo=None),
        "day": day,
        "raw": b"\0\xff",
        "by_hour": [(at.replace(tzinfo=None, microsecond=0), True)],
        "by_day": [(day, [{"x": float("-inf")}, {"x": None}, None])],
    }
    (message,) = messages({"body": pa.struct(list(fields.items()))}, {"body": row})
    assert json.loads(bytes(message.body)) == {
        "price": "123456789012345678901234567890.10",
        "ratio": "NaN",
        "none": None,
        "at": "2026-11-22T10:30:00.500000Z",
        "local": "2026-11-22T10:30:00.500000",
        "day": "2026-11-22",
        "raw": "AP8=",
        "by_hour": {"2026-11-22T10:30:00": True},
        "by_day": {"2026-11-22": [{"x": "-Infinity"}, {"x": None}, None]},
    }


def test_a_fraction_of_a_second_is_never_early() -> None:
    kinds = {"body": pa.string(), "delay": pa.decimal128(10, 3)}
    rows = [{"body": "1", "delay": Decimal(text)} for text in ("0.001", "7.000", "7.100")]
    assert [message.delay for message in messages(kinds, *rows)] == [1, 7, 8]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "2026-11-22"),
        (pa.string(), "2026-11-22T01:00:00+01:00"),
        (pa.date32(), dt.date(2026, 11, 22)),
        (pa.timestamp("us"), dt.datetime(2026, 11, 22)),  # noqa: DTZ001 - Spark's without a zone
    ],
)
def test_deliver_at_is_an_instant_in_whatever_form(kind: pa.DataType, value: object) -> None:
    kinds = {"body": pa.string(), "deliver_at": kind}
    (message,) = messages(kinds, {"body": "1", "deliver_at": value})
    assert message.deliver_at == dt.datetime(2026, 11, 22, tzinfo=dt.UTC)


def test_headers_may_be_those_of_kafka() -> None:
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = {"body": pa.string(), "headers": pa.list_(entry), "key": pa.binary()}
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": "ü".encode()}]
    (message,) = messages(kinds, {"body": "1", "headers": headers, "key": b"k"})
    assert message.headers == {"a": "ü", "key": "k"}


def test_a_row_names_its_group_and_its_key_is_the_same_without_one() -> None:
    kinds: dict[str, pa.DataType] = {"body": pa.string(), "ttl": pa.int32()}
    row = {"body": "1", "ttl": 60}
    (plain,) = messages(kinds, row)
    none, seven, eight = messages(
        {**kinds, "group": pa.int64()}, *({**row, "group": group} for group in (None, 7, 8))
    )
    assert (none.group, seven.group, eight.group) == (None, "7", "8")
    assert none.idempotency_key == plain.idempotency_key
    keys = {one.idempotency_key for one in (none, seven, eight)}
    assert len(keys) == 3


def test_a_row_has_its_key_in_whatever_order_the_rows_come() -> None:
    """Rows that differ in one column alone must not swap their keys when a task is repeated."""
    kinds = {"body": pa.string(), "headers": pa.map_(pa.string(), pa.string()), "ttl": pa.int32()}
    rows: list[dict[str, Any]] = [
        {"body": "1", "headers": [("a", "1"), ("b", "2")]},
        {"body": "1", "headers": [("a", "2")]},
        {"body": "1", "ttl": 60},
        {"body": "1"},
    ]
    first, again = messages(kinds, *rows), messages(kinds, *reversed(rows))
    assert [m.idempotency_key for m in first] == [m.idempotency_key for m in reversed(again)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"ttl": TEXT}, "'ttl' must be an integer, in seconds, not string"),
        ({"ttl": types.DoubleType()}, "'ttl' must be an integer"),
        ({"delay": types.TimestampType()}, "'delay' must be a number"),
        ({"deliver_at": types.LongType()}, "'deliver_at' must be a timestamp"),
        ({"headers": types.MapType(TEXT, types.LongType())}, "'headers' must be a map of strings"),
        ({"headers": types.ArrayType(TEXT)}, "'headers' must be a map of strings"),
        ({"key": types.DoubleType()}, "'key' must be a string, an integer"),
        ({"body": types.BinaryType()}, "'body' must be text"),
        ({"body": types.StructType().add("i", types.DayTimeIntervalType())}, "interval"),
        ({"body": types.MapType(types.StructType(), TEXT)}, "keys of struct"),
        ({"delay": types.LongType(), "deliver_at": TEXT}, "'delay' or 'deliver_at'"),
    ],
)
def test_a_wrong_type_is_named_before_the_first_row(
    columns: dict[str, types.DataType], words: str
) -> None:
    schema = types.StructType()
    for name, kind in {"body": TEXT, **columns}.items():
        schema = schema.add(name, kind)
    with pytest.raises(OptionError, match=words):
        check(schema, None)


@pytest.mark.parametrize("policy", ["skip", "deadletter"])
def test_whatever_is_wrong_with_a_row_obeys_the_policy(
    server: ServerProcess, client: Client, queue: str, policy: str
) -> None:
    """Each of these rows is wrong in another way; only the last one is a message."""
    big = json.dumps("x" * 400_000)
    wrong: list[dict[str, Any]] = [
        {"body": big},
        {"body": "1", "delay": float("nan")},
        {"body": "1", "delay": -1.0},
        {"body": "1", "delay": 1e300},
        {"body": "1", "headers": [("a", None)]},
        {"body": "1", "idempotency_key": b"\xff"},
        {"body": "1", "queue": "no/queue"},
        {"body": "{broken"},
        {"body": "7"},
    ]
    letters = f"{queue}-letters"
    client.create_queue(queue, {"_default_message_delay": 1})
    client.create_queue("no-queue", {"_default_message_delay": 1})
    given = {"onInvalidRow": policy, "deadLetterQueue": letters}
    options = parse({"endpoint": server.url, "queue": queue, **given})
    rows = pa.RecordBatch.from_pylist(
        [{"queue": queue, **row} for row in wrong],
        schema=pa.schema(
            [
                ("body", pa.string()),
                ("delay", pa.float64()),
                ("queue", pa.string()),
                ("headers", pa.map_(pa.string(), pa.string())),
                ("idempotency_key", pa.binary()),
            ]
        ),
    )
    kinds = types.StructType().add("body", TEXT).add("delay", "double").add("queue", TEXT)
    kinds = kinds.add("headers", types.MapType(TEXT, TEXT)).add("idempotency_key", "binary")
    written = Sender(options, kinds).write(iter([rows]))
    assert (written.rows, written.stored, written.rejected) == (9, 1, 8)
    stored = client.list_messages(queue, include_delayed=True)
    assert [message.body for message in stored] == [7]
    if policy == "deadletter":
        found = [message.body for message in client.list_messages(letters)]
        assert len(found) == 8
        (large,) = [letter for letter in found if "bytes" in letter]
        assert large["bytes"] > 400_000
        assert "row" not in large
        assert large["partition"] == 0


@pytest.mark.parametrize("key", [dt.date(2024, 1, 1), b"k"])
def test_a_refused_row_is_written_down_whatever_its_keys_are(
    server: ServerProcess, client: Client, queue: str, key: object, tmp_path: Path
) -> None:
    kind = pa.binary() if isinstance(key, bytes) else pa.date32()
    given = {"onInvalidRow": "deadletter", "deadLetterQueue": queue, "rejectPath": str(tmp_path)}
    rows = pa.RecordBatch.from_pylist(
        [{"body": [(key, 1)], "ttl": 1}],
        schema=pa.schema([("body", pa.map_(kind, pa.int32())), ("ttl", pa.int32())]),
    ).append_column("headers", pa.array([[("a", None)]], pa.map_(pa.string(), pa.string())))
    kinds = types.StructType().add("body", types.MapType(from_arrow_type(kind), types.LongType()))
    Sender(parse({"endpoint": server.url, "queue": "q", **given}), kinds).write(iter([rows]))
    said = {"aw==" if isinstance(key, bytes) else "2024-01-01": 1}
    (letter,) = client.list_messages(queue)
    (line,) = tmp_path.glob("*.jsonl")
    assert letter.body["row"]["body"] == json.loads(line.read_text())["row"]["body"] == said


def test_a_repeated_task_and_rows_of_one_key_are_refused_as_often_as_they_come(
    server: ServerProcess, client: Client, queue: str
) -> None:
    """A letter's own key must stand for one content, or the queue of letters refuses it."""
    given = {"onInvalidRow": "deadletter", "deadLetterQueue": f"{queue}-letters", "runId": "r"}
    kinds = types.StructType().add("body", TEXT).add("ttl", "integer").add("idempotency_key", TEXT)
    rows = pa.RecordBatch.from_pydict(
        {"body": ["{1", "{2", "3"], "ttl": [60, 60, 1], "idempotency_key": ["k", "k", "k"]}
    )
    sender = Sender(parse({"endpoint": server.url, "queue": queue, **given}), kinds)
    for _ in range(2):
        assert sender.write(iter([rows])).rejected == 3
    letters = [message.body["row"] for message in client.list_messages(f"{queue}-letters")]
    assert [letter["body"] for letter in letters] == ["{1", "{2", "3"]
    assert letters[2]["ttl"] == 1  # the whole row, also where the server refused it


def test_delays_that_a_queue_ignores_stop_the_job_before_its_first_row(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.create_queue(queue)
    kinds = types.StructType().add("body", TEXT).add("delay", types.LongType())
    rows = pa.RecordBatch.from_pydict({"body": ["1"], "delay": [60]})
    options = {"endpoint": server.url, "queue": queue}
    with pytest.raises(OptionError, match=r"normal queue.*onIgnoredDelay"):
        Sender(parse(options), kinds)
    by_row = Sender(parse(options), kinds.add("queue", TEXT))
    with pytest.raises(OptionError, match="onIgnoredDelay"):
        by_row.write(iter([rows.append_column("queue", pa.array([queue]))]))
    assert client.stats(queue).total == 0
    written = Sender(parse({**options, "onIgnoredDelay": "warn"}), kinds).write(iter([rows]))
    assert written.stored == 1
