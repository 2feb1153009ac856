"""A batch query browses queues in ranges that the server hands out."""

import datetime as dt

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.server import ServerProcess
from zaqar_lite.client import Client, NewMessage


def read(spark: SparkSession, url: str, queues: str, **options: object) -> DataFrame:
    reader = spark.read.format("zaqar").option("endpoint", url).option("queues", queues)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_every_message_is_read_once_from_several_queues_in_several_ranges(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    other = f"{queue}-other"
    client.post_all(queue, ({"n": n} for n in range(500)))
    client.post_all(other, ({"n": n} for n in range(500, 550)))
    rows = read(spark, server.url, f"{queue},{other}", numPartitions=4, pageSize=50)
    assert rows.rdd.getNumPartitions() > 4
    found = rows.selectExpr("queue", "int(get_json_object(body, '$.n')) as n", "id").collect()
    assert sorted(row.n for row in found) == list(range(550))
    assert {row.queue for row in found if row.n < 500} == {queue}


def test_a_row_has_what_the_server_knows(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    client.post_batch(queue, [NewMessage(body={"n": 1}, ttl=900, headers={"a": "b"})])
    with client.claim(queue, renew=False) as claim:
        (row,) = read(spark, server.url, queue).collect()
        assert row.claim_id == claim.id
        claim.skip(*claim.messages)
    assert (row.body, row.headers, row.claim_count) == ('{"n":1}', {"a": "b"}, 1)
    assert row.ttl >= 900
    assert abs(row.created - dt.datetime.now(dt.UTC).replace(tzinfo=None)) < dt.timedelta(hours=1)
    assert row.dlq_source_queue is None
    assert row.expires - row.created == dt.timedelta(seconds=row.ttl)


def test_an_empty_queue_has_no_rows_and_one_that_is_not_there_fails(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    with pytest.raises(PySparkException, match=f"no queue '{queue}'"):
        read(spark, server.url, queue).count()
    assert read(spark, server.url, queue, failOnMissingQueue="false").count() == 0
    client.create_queue(queue)
    assert read(spark, server.url, queue).count() == 0


def test_filters_are_pushed_down_and_hold(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    other = f"{queue}-other"
    client.post_batch(queue, [1, 2])
    client.post_batch(other, [3])
    held = client.create_claim(queue, limit=1)
    assert held is not None
    rows = read(spark, server.url, f"{queue},{other}", pushdown="true")
    chosen = rows.where(f"queue = '{queue}' and claim_id is null")
    assert chosen.rdd.getNumPartitions() <= 2
    assert [row.body for row in chosen.collect()] == ["2"]
    assert rows.where("queue = 'nowhere'").count() == 0
    bare = read(spark, server.url, other, includeBody="false").select("body", "queue")
    assert [tuple(row) for row in bare.collect()] == [(None, other)]


def test_sql_reads_and_writes_a_queue(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    """A view is a queue under a name of the session's."""
    client.post(queue, 1)
    given = f"OPTIONS (endpoint '{server.url}', queue '{queue}')"
    spark.sql(f"CREATE TEMPORARY VIEW of_queue (body STRING, ttl INT) USING zaqar {given}")
    try:
        spark.sql("INSERT INTO of_queue VALUES ('2', 700)")
        rows = spark.sql("SELECT body FROM of_queue WHERE ttl = 700").collect()
    finally:
        spark.catalog.dropTempView("of_queue")
    assert [row.body for row in rows] == ["2"]
    assert client.stats(queue).total == 2
