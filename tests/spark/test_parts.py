"""Readers, writers and the ledger as plain objects, without a Spark session."""

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import hdfs_native
import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql.datasource import EqualTo, In
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tests.client.conftest import MovableServer
from tests.proxy import Fault, Proxy, nth
from tests.server import ServerProcess
from tests.services.process import Service, free_port, wait_until
from tests.services.s3 import S3Server
from tests.spark.conftest import in_bucket, in_hdfs
from zaqar_lite.client import Client
from zaqar_lite.spark.browsing import BrowseStream, DataLoss, PushdownReader
from zaqar_lite.spark.claiming import ClaimStream, Renewal
from zaqar_lite.spark.ledger import Batch, Directory, Ledger, open_directory
from zaqar_lite.spark.messages import InvalidRow, Messages
from zaqar_lite.spark.options import OptionError, Options, _retries, parse
from zaqar_lite.spark.writer import Sender, ZaqarWriter

BODY = StructType([StructField("body", StringType())])
ID = StructType([StructField("id", StringType())])


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def options(url: str, queue: str, **given: object) -> Options:
    return parse({"endpoint": url, "queue": queue, **{k: str(v) for k, v in given.items()}})


def values(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    """The only column's."""
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def batches(bodies: list[str]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"body": bodies})


def test_a_repeated_writer_stores_nothing_in_whatever_order_the_rows_come(
    proxy: Proxy, client: Client, queue: str
) -> None:
    proxy.choose = nth("POST", lambda number: number == 0, Fault.LOSE)
    writer = ZaqarWriter(options(proxy.url, queue, batchSize=3), BODY)
    again: ZaqarWriter = pickle.loads(pickle.dumps(writer))  # noqa: S301 - our own bytes
    written = writer.write(batches(["1", "2", "2", "3", "2"]))
    assert (written.rows, written.retries) == (5, 1)
    again.write(batches(["2", "3", "2", "1", "2"]))
    assert sorted(m.body for m in client.list_messages(queue)) == [1, 2, 2, 2, 3]
    ZaqarWriter(options(proxy.url, queue), BODY).write(batches(["9"]))
    assert client.stats(queue).total == 6


def test_a_filter_on_ids_gets_these_messages_alone(
    server: ServerProcess, client: Client, queue: str
) -> None:
    ids = client.post_batch(queue, range(5))
    reader = PushdownReader(options(server.url, queue), BODY)
    wanted = EqualTo(("id",), ids[3]), In(("id",), (ids[1], ids[3], "nowhere", "not/an,id", None))
    assert len(list(reader.pushFilters([wanted[1]]))) == 1
    (part,) = reader.partitions()
    assert values(reader.read(part)) == ["1", "3"]
    list(reader.pushFilters([wanted[0]]))
    (part,) = reader.partitions()
    assert values(reader.read(part)) == ["3"]
    list(reader.pushFilters([EqualTo(("id",), "not/an,id")]))
    (part,) = reader.partitions()
    assert values(reader.read(part)) == []


def test_rows_become_messages_as_they_are() -> None:
    """Maps are objects, equal rows have keys of their own, and a key needs no other row."""
    made = Messages(options("http://127.0.0.1:1", "q"), "run/0")
    kinds = pa.schema([("body", pa.map_(pa.string(), pa.int64())), ("ttl", pa.int32())])
    batch = pa.RecordBatch.from_pylist(
        [{"body": [("a", 1)], "ttl": 60}, {"body": [("a", 1)], "ttl": 60}, {"body": None}],
        schema=kinds,
    )
    found = [message for _, message in made.of(batch, refused)]
    assert [bytes(message.body) for message in found] == [b'{"a":1}', b'{"a":1}', b"null"]
    assert [message.ttl for message in found] == [60, 60, None]
    assert len({message.idempotency_key for message in found}) == 3
    alone = Messages(options("http://127.0.0.1:1", "q"), "run/0")
    (first,) = [message for _, message in alone.of(batch.slice(1, 1), refused)]
    assert first.idempotency_key == found[0].idempotency_key
    other = Messages(options("http://127.0.0.1:1", "q"), "run/1")
    assert {m.idempotency_key for _, m in other.of(batch, refused)}.isdisjoint(
        m.idempotency_key for m in found
    )


def test_a_key_is_kept_and_only_an_idempotency_key_deduplicates(
    server: ServerProcess, client: Client, queue: str
) -> None:
    """Kafka users partition by customer: a thousand orders of one customer are a thousand."""
    columns = {"body": ["1", "1", "3"], "key": [7, 7, None], "headers": [None, [("a", "b")], None]}
    kinds = pa.schema(
        [
            ("body", pa.string()),
            ("key", pa.int64()),
            ("headers", pa.map_(pa.string(), pa.string())),
        ]
    )
    headers = MapType(StringType(), StringType())
    schema = schema_of(body=StringType(), key=LongType(), headers=headers)
    rows = pa.RecordBatch.from_pydict(columns, schema=kinds)
    written = Sender(options(server.url, queue), schema).write(iter([rows]))
    assert (written.rows, written.stored, written.duplicates) == (3, 3, 0)
    found = [m.headers for m in client.list_messages(queue, details=True)]
    assert found == [{"key": "7"}, {"a": "b", "key": "7"}, None]
    # The option names the column that tells rows apart, here the key, or one of the user's own.
    other = f"{queue}-other"
    sender = Sender(options(server.url, other, idempotency_key="key"), schema)
    written = sender.write(iter([rows]))
    assert (written.rows, written.stored, written.duplicates) == (3, 2, 1)
    named = rows.select(["body", "key"]).rename_columns(["body", "order"])
    sender = Sender(
        options(server.url, other, idempotencyKey="order"),
        schema_of(body=StringType(), order=LongType()),
    )
    assert sender.write(iter([named])).duplicates == 2
    assert client.stats(other).total == 3
    with pytest.raises(OptionError, match="idempotencyKey' names the column 'nothing'"):
        Sender(options(server.url, queue, idempotencyKey="nothing"), schema)


def refused(row: dict[str, Any], key: str | None, error: InvalidRow) -> None:
    raise AssertionError((row, key, error))


def test_a_marker_stays_when_nothing_is_new_and_loss_is_noticed(
    server: ServerProcess, client: Client, queue: str
) -> None:
    ids = client.post_batch(queue, range(10))
    reader = BrowseStream(options(server.url, queue, pageSize=4), ID)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(5))
    assert middle["counts"] == {queue: 5}
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    (part,) = pickle.loads(pickle.dumps(reader.partitions(middle, end)))  # noqa: S301 - our own
    assert values(reader.read(part)) == ids[5:]
    client.cancel(queue, ids[7])
    with pytest.raises(DataLoss, match="1 of 5"):
        list(reader.read(part))
    lax = BrowseStream(options(server.url, queue, failOnDataLoss="false"), ID)
    assert len(values(lax.read(part))) == 4
    with pytest.raises(OptionError, match="checkpoint"):
        reader.latestOffset({"markers": {"other": ""}, "counts": {}}, ReadMaxRows(5))


def claiming(
    server: ServerProcess, queue: str, place: Path, schema: StructType = ID
) -> ClaimStream:
    given = options(server.url, queue, mode="claim", stateDir=place, pageSize=4)
    return ClaimStream(given, schema)


def rows_of(reader: ClaimStream, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))  # noqa: S301 - our own
    away: ClaimStream = pickle.loads(pickle.dumps(reader))  # noqa: S301 - as an executor has it
    return [value for part in parts for value in values(away.read(part))]


def test_a_batch_that_spark_knows_is_read_again_and_another_is_given_back(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    ids = client.post_batch(queue, range(8))
    killed = claiming(server, queue, tmp_path)
    start = killed.initialOffset()
    end = killed.latestOffset(start, ReadMaxRows(8))
    killed.stop()
    # What the ledger has not, such as a column of a later version, is null.
    reader = claiming(
        server, queue, tmp_path, StructType([*ID, StructField("group", StringType())])
    )
    reader.prepareForTriggerAvailableNow()
    assert rows_of(reader, start, end) == ids
    # If Spark does not know the batch, its messages come again, also in a query that ends.
    end = reader.latestOffset(start, ReadMaxRows(8))
    assert rows_of(reader, start, end) == ids
    counts = client.list_messages(queue, include_claimed=True, details=True)
    assert {message.claim_count for message in counts} == {2}
    reader.commit(end)
    assert client.stats(queue).total == 0
    reader.stop()


def test_a_ledger_of_another_queue_checkpoint_or_running_query_is_refused(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    first = Ledger(open_directory(tmp_path.as_uri()), queue)
    first.open()
    with pytest.raises(OptionError, match="in use"):
        Ledger(open_directory(str(tmp_path)), queue).open(patience=0.1)
    first.close()
    with pytest.raises(OptionError, match="belongs to"):
        Ledger(open_directory(str(tmp_path)), "other").open()
    reader = claiming(server, queue, tmp_path)
    with pytest.raises(OptionError, match="not the one"):
        reader.latestOffset({"batch": 7, "ledger": "another"}, ReadMaxRows(1))
    reader.stop()


def test_a_ledger_on_a_file_system_without_locks_is_the_last_ones(tmp_path: Path) -> None:
    check_last_has_it(lambda: Ledger(Directory(fs.LocalFileSystem(), f"{tmp_path}/far/away/"), "q"))


def test_a_ledger_lies_in_an_object_store(s3_server: S3Server) -> None:
    place = in_bucket(s3_server)
    check_last_has_it(lambda: Ledger(open_directory(place), "q"))
    with pytest.raises(OptionError, match="belongs to the queue 'q'"):
        Ledger(open_directory(place), "other").open()


def test_a_ledger_lies_in_hdfs(hdfs_server: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    place = in_hdfs(hdfs_server)
    # A query that was killed while it wrote: HDFS still has its file open for it.
    dead = hdfs_native.Client(hdfs_server.url)
    half = dead.create(f"{urlsplit(place).path}/identity.json.new")
    half.write(b"{")
    check_last_has_it(lambda: Ledger(open_directory(place), "q"))
    with pytest.raises(OptionError, match="belongs to the queue 'q'"):
        Ledger(open_directory(place), "other").open()
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with pytest.raises(RuntimeError, match="Permission denied: user=stranger"):
        Ledger(open_directory(place), "q").open()


def test_a_ledger_out_of_reach_is_no_acknowledged_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.client.failover.max.attempts</name>"
        "<value>1</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    files = open_directory(f"hdfs://127.0.0.1:{free_port()}/streams/orders")
    with pytest.raises(OSError, match="refused"):
        files.read("000000000001.json")
    with pytest.raises(OSError, match="refused"):
        files.names()


def check_last_has_it(ledger: Callable[[], Ledger]) -> None:
    """A ledger keeps what was written, and whoever opened it last has it."""
    rows = pa.table({"id": ["a", "b"]})
    dead = ledger()
    known = dead.open()
    dead.write(1, [("c", ["a", "b"])], rows)
    heir = ledger()
    assert heir.open() == known
    assert heir.numbers() == [1]
    assert heir.batch(1) == Batch(2, [("c", ["a", "b"])])
    assert heir.rows(1, 1) == rows.slice(1)
    heir.write(2, [], rows)
    with pytest.raises(OptionError, match="taken by another query"):
        dead.write(2, [], rows)
    heir.remove(1)
    heir.remove(1)
    assert heir.numbers() == [2]
    assert heir.batch(1) is None


def test_renewal_outlasts_a_claims_ttl(movable: MovableServer, queue: str, tmp_path: Path) -> None:
    client = Client(movable.url, page_size=1000)
    client.post_batch(queue, range(8))
    given = options(
        client.url,
        queue,
        mode="claim",
        stateDir=tmp_path / "ledger",
        pageSize=4,
        claimTtl=60,
        claimRenewal=0.05,
    )
    reader = ClaimStream(given, ID)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(8))
    for _ in range(4):
        movable.advance(40)
        wait_until(lambda: ages_of_claims(client, queue) == [0, 0], [])
    assert client.create_claim(queue, limit=8) is None
    reader.commit(end)
    assert client.stats(queue).total == 0
    # Without renewal the same while is too long.
    client.post_batch(queue, range(8))
    reader.latestOffset(end, ReadMaxRows(8))
    reader.stop()
    time.sleep(0.2)  # a round of renewals that is under way ends
    movable.advance(70)
    assert client.create_claim(queue, limit=8) is not None


def test_renewal_goes_on_after_a_key_that_was_not_there(
    movable: MovableServer, queue: str, tmp_path: Path
) -> None:
    with Client(movable.url) as client:
        client.post(queue, 1)
        held = client.create_claim(queue, ttl=60)
        assert held is not None
        more = {"project": "default", "keyFile": tmp_path / "key", "claimTtl": 60}
        renewal = Renewal(options(movable.url, queue, claimRenewal=0.05, **more))
        renewal.add(1, [held.id])
        time.sleep(0.3)  # it has met the lack of a key
        (tmp_path / "key").write_text("zq_1_2")
        for _ in range(3):
            movable.advance(40)
            wait_until(lambda: ages_of_claims(client, queue) == [0], [])
        renewal.stop()


def ages_of_claims(client: Client, queue: str) -> list[float]:
    """How long ago the claims that hold a queue's messages were made or renewed."""
    held = {message.claim_id for message in client.list_messages(queue, include_claimed=True)}
    return [client.get_claim(queue, claim_id or "").age for claim_id in held]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batchSize": "many"}, "'batchSize' must be `int`, not 'many'"),
        ({"batchSize": "0"}, "must be `int` >= 1, not '0'"),
        ({"onInvalidRow": "ignore"}, "one of"),
        ({"onInvalidRow": "deadletter"}, "deadLetterQueue"),
        ({"keys": "requests", "onInvalidRow": "skip"}, "keys=rows"),
        ({"mode": "claim"}, "stateDir"),
        ({"keys": "perhaps"}, "requests"),
        ({"colour": "red"}, "Unknown option"),
        ({"retryTimeout": "inf"}, "'retryTimeout' must be `float` <= 1000000.0"),
        ({"reportPath": "hdfs://n/r"}, "'reportPath' is written on the machine"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse({"endpoint": "http://127.0.0.1:1", **given})


def test_each_of_many_requests_is_tried_about_as_long_as_the_option_says() -> None:
    retries = replace(_retries(10), uniform=Random(7).uniform)  # a task has many under way
    spans = [sum(retries.wait(n) or 0 for n in range(1, retries.attempts)) for _ in range(400)]
    assert 6 < min(spans) < max(spans) < 15


@pytest.mark.parametrize("mode", ["browse", "claim"])
def test_a_stream_of_a_queue_that_is_not_there_fails(
    server: ServerProcess, queue: str, tmp_path: Path, mode: str
) -> None:
    given = options(server.url, queue, mode=mode, stateDir=tmp_path)
    reader = (ClaimStream if mode == "claim" else BrowseStream)(given, ID)
    with pytest.raises(OptionError, match="failOnMissingQueue"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
    reader.stop()


def test_a_rate_is_that_of_all_tasks_however_few_run_at_a_time(
    server: ServerProcess, client: Client, queue: str
) -> None:
    """Eight partitions by two tasks at a time: what is asked for is what runs."""
    given = options(server.url, queue, rate=400)
    sender: Sender = pickle.loads(pickle.dumps(Sender(given, BODY)))  # noqa: S301 - our own bytes
    began = time.monotonic()
    with ThreadPoolExecutor(2) as slots:
        list(slots.map(lambda part: sender.write(batches([f"{part}"] * 100)), range(8)))
    seconds = time.monotonic() - began
    assert client.stats(queue).total == 800
    # The last hundred go at 1.75 s. An eighth of the rate for each of two tasks takes 7.75 s.
    assert 1.7 < seconds < 5
    # The same job again owes nothing to one that was killed.
    given = options(server.url, queue, rate=10, runId="r")
    dead, again = Sender(given, BODY), Sender(given, BODY)
    assert dead.rate_limit is not None
    next(dead.rate_limit.limited(range(600), 600))
    dead.rate_limit._reserve(600)
    began = time.monotonic()
    again.write(batches(["1"]))
    assert time.monotonic() - began < 30
    for one in (sender, dead, again):
        one.abort([])


def test_a_page_is_as_large_as_the_server_allows_but_not_above_200(
    server: ServerProcess, queue: str
) -> None:
    with options(server.url, queue).client() as client:
        assert client.page_size == 200
    with options(server.url, queue, pageSize=1000).client() as client:
        assert client.page_size == 1000
    with ServerProcess("memory://", env={"ZAQAR_LITE_MAX_LARGE_PAGE": "20"}) as small:
        with options(small.url, queue).client() as client:
            assert client.page_size == 20
