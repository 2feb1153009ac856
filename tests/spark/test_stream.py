"""Streaming queries on a real Spark: restart, a killed batch, a lapsed claim, the sink."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.server import ServerProcess
from tests.spark.conftest import finished
from zaqar_lite.client import Client


def stream(spark: SparkSession, url: str, queue: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("zaqar").option("endpoint", url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def to_files(rows: DataFrame, place: Path, *, name: str = "out") -> StreamingQuery:
    writer = (
        rows.select("id", "body")
        .writeStream.format("json")
        .option("checkpointLocation", str(place / f"checkpoint-{name}"))
        .trigger(availableNow=True)
    )
    return finished(lambda: writer.start(str(place / name)))


def read_files(spark: SparkSession, place: Path) -> list[int]:
    rows = spark.read.schema("id string, body string").json(str(place / "out")).collect()
    return sorted(int(row.body) for row in rows)


def test_browsing_goes_on_from_its_checkpoint(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    options = {"maxMessagesPerTrigger": 40, "pageSize": 25}
    client.post_all(queue, range(100), in_flight=1)
    first = to_files(stream(spark, server.url, queue, **options), tmp_path)
    assert [progress["numInputRows"] for progress in first.recentProgress][:3] == [40, 40, 20]
    client.post_all(queue, range(100, 110), in_flight=1)
    second = to_files(stream(spark, server.url, queue, **options), tmp_path)
    assert read_files(spark, tmp_path) == list(range(110))
    told = [json.loads(one["sources"][0]["latestOffset"]) for one in second.recentProgress]
    assert {one[queue]["total"] for one in told} == {110}
    assert client.stats(queue).total == 110


def test_claiming_deletes_what_was_processed_with_the_last_batch(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    rows = stream(spark, server.url, queue, mode="claim", stateDir=ledger, maxMessagesPerTrigger=40)
    client.post_all(queue, range(100), in_flight=1)
    to_files(rows, tmp_path)
    assert read_files(spark, tmp_path) == list(range(100))
    assert client.stats(queue).total == 0
    assert sorted(path.name for path in ledger.iterdir()) == ["identity.json", "lock"]


def test_a_killed_batch_is_read_again_from_the_ledger_and_a_lapsed_claim_is_left_to_others(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    client.post_all(queue, range(60), in_flight=1)
    seen: list[int] = []
    fails = [True]

    def process(rows: DataFrame, batch_id: int) -> None:
        seen.extend(int(row.body) for row in rows.select("body").collect())
        if fails.pop() if fails else False:
            message = "planted"
            raise RuntimeError(message)

    def run() -> None:
        rows = stream(spark, server.url, queue, mode="claim", stateDir=ledger, pageSize=20)
        writer = rows.writeStream.foreachBatch(process).trigger(availableNow=True)
        finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)

    with pytest.raises(StreamingQueryException, match="planted"):
        run()
    assert client.stats(queue).claimed == 60
    # Two of its three claims lapse: one message goes to another holder, the rest to nobody.
    first, second = sorted({m.claim_id or "" for m in listed(client, queue)})[:2]
    client.release_claim(queue, first)
    client.release_claim(queue, second)
    held = client.create_claim(queue, limit=1)
    assert held is not None
    run()
    assert sorted(seen) == sorted([*range(60), *range(60)])
    assert [message.id for message in listed(client, queue)] == [held.messages[0].id]


def test_a_stream_writes_each_row_once_also_when_its_last_batch_is_repeated(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    source, target = queue, f"{queue}-target"
    client.post_all(source, range(30), in_flight=1)

    def run() -> None:
        rows = stream(spark, server.url, source, maxMessagesPerTrigger=20)
        # In each batch one row is refused, and none takes the place of another.
        rows = rows.selectExpr("if(body in ('7', '27'), '{' || body, body) as body")
        options: dict[str, Any] = {
            "endpoint": server.url,
            "queue": target,
            "checkpointLocation": str(tmp_path / "checkpoint"),
            "onInvalidRow": "skip",
            "rejectPath": str(tmp_path / "rejects"),
        }
        writer = rows.writeStream.format("zaqar").options(**options).trigger(availableNow=True)
        finished(writer.start)

    run()
    # The driver "dies" before it notes that batch 1 is done: Spark repeats it.
    for path in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    run()
    stored = sorted(int(message.body) for message in listed(client, target))
    assert stored == [number for number in range(30) if number not in {7, 27}]
    rejected = [json.loads(path.read_text()) for path in (tmp_path / "rejects").iterdir()]
    assert sorted(one["row"]["body"] for one in rejected) == ["{27", "{7"]


def listed(client: Client, queue: str) -> list[Any]:
    return list(client.list_messages(queue, include_claimed=True))
