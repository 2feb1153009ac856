"""Rows become messages: each once, whatever fails on the way."""

import json
import time
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, udf

from tests.proxy import Fault, Proxy, nth
from tests.server import ServerProcess
from zaqar_lite.client import Client


def write(rows: DataFrame, url: str, queue: str, **options: object) -> None:
    writer = rows.write.format("zaqar").mode("append").option("endpoint", url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.option("queue", queue).save()


def bodies(client: Client, queue: str) -> list[object]:
    found = client.list_messages(queue, include_claimed=True, include_delayed=True)
    return [message.body for message in found]


EQUAL = json.dumps({"equal": "x" * 1000})


def rows_of_a_task_that_fails_once(spark: SparkSession, url: str, queue: str) -> DataFrame:
    """1,000 equal rows in two tasks; the first attempt of the second one fails at its last row.

    It fails when a row of its own task is in the queue, so that there is something to send twice.
    """
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

    def body(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if number == 999 and context.attemptNumber() == 0:
            until = time.monotonic() + 120
            with Client(url) as client:
                # The other task has 500 rows.
                while client.stats(queue).total <= 500 and time.monotonic() < until:
                    time.sleep(0.05)
            message = "planted"
            raise RuntimeError(message)
        # Another object for each row. Equal ones that are the same object are pickled once a batch:
        # so few bytes stay in the function's output buffer of 64 KiB until the task ends, and no
        # row reaches the writer before the failure does.
        return EQUAL[:1] + EQUAL[1:]

    return spark.range(0, 1000, 1, 2).select(
        udf(body, "string", useArrow=False)("id").alias("body")
    )


def test_equal_rows_stay_as_many_as_they_were_also_after_a_retried_task(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    write(rows_of_a_task_that_fails_once(spark, server.url, queue), server.url, queue)
    assert bodies(client, queue) == [json.loads(EQUAL)] * 1000


def test_one_key_a_request_is_enough_where_rows_come_in_the_same_order(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    rows = rows_of_a_task_that_fails_once(spark, server.url, queue)
    write(rows, server.url, queue, keys="requests", reportPath=report)
    assert bodies(client, queue) == [json.loads(EQUAL)] * 1000
    (line,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert 0 < line["duplicates"] < line["rows"] == 1000


def test_a_run_with_one_key_a_request_refuses_other_rows(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    options = {"keys": "requests", "runId": "r"}
    rows = spark.range(0, 300, 1, 1).selectExpr("cast(id as string) as body")
    write(rows, server.url, queue, **options)
    write(rows, server.url, queue, **options)
    other = spark.range(1, 301, 1, 1).selectExpr("cast(id as string) as body")
    with pytest.raises(Exception, match="in another batch or with another body"):
        write(other, server.url, queue, **options)
    assert client.stats(queue).total == 300


def test_lost_answers_store_nothing_twice_and_are_reported(
    spark: SparkSession, proxy: Proxy, client: Client, queue: str, tmp_path: Path
) -> None:
    proxy.choose = nth("POST", lambda number: number % 10 == 3, Fault.LOSE)
    report = tmp_path / "report"
    rows = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) as body")
    begun = time.time()
    write(rows, proxy.url, queue, batchSize=50, reportPath=report)
    lost = proxy.faults.count(Fault.LOSE)
    assert lost >= 4
    assert sorted(bodies(client, queue)) == list(range(2000))  # type: ignore[type-var]
    (line,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert (line["rows"], line["batches"], line["retries"]) == (2000, 40, lost)
    assert line["bytes"] > 2000
    assert begun < line["first_post"] < line["last_post"] < time.time()


def test_the_same_run_again_stores_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    rows = spark.range(0, 20, 1, 2).selectExpr("cast(id as string) as body")
    for run in ("one", "one", "two"):
        write(rows, server.url, queue, runId=run)
    assert len(bodies(client, queue)) == 40


def test_rows_say_queue_ttl_delay_headers_and_idempotency_key(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    client.create_queue(queue, {"_default_message_delay": 5})
    rows = spark.sql(
        """select named_struct('n', 7) as body, 600 as ttl,
        current_timestamp() + interval 10 minutes as deliver_at,
        map('color', 'red') as headers, 'my-key' as idempotency_key from range(2)"""
    )
    write(rows.withColumn("queue", lit(queue)), server.url, "unused")
    (message,) = client.list_messages(queue, include_delayed=True, details=True)
    assert message.body == {"n": 7}
    assert message.ttl == 600
    assert message.headers == {"color": "red"}
    assert client.stats(queue).delayed == 1


def test_a_row_that_cannot_be_a_message_ends_the_job_unless_told_otherwise(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    rows = spark.createDataFrame([("1", 600), ("{broken", 600)], "body string, ttl int")
    with pytest.raises(PySparkException, match="can't be a message"):
        write(rows, server.url, queue)
    letters = f"{queue}-letters"
    write(rows, server.url, queue, onInvalidRow="deadletter", deadLetterQueue=letters)
    assert 1 in bodies(client, queue)
    assert "no JSON" in str(bodies(client, letters))


def test_what_is_wrong_with_an_option_or_a_column_is_said(
    spark: SparkSession, server: ServerProcess, queue: str
) -> None:
    rows = spark.sql("select '1' as body, 1 as color")
    with pytest.raises(PySparkException, match="Unknown column 'color'"):
        write(rows, server.url, queue)
    with pytest.raises(PySparkException, match="Unknown option 'batchsizes'"):
        write(rows.select("body"), server.url, queue, batchSizes=1)
    with pytest.raises(PySparkException, match=r"'rate' must be `float` >= 0.0, not '-1'"):
        write(rows.select("body"), server.url, queue, rate=-1)
    # A stream's options, too, at load(), and its schema when it begins, with the reason.
    reader = spark.readStream.format("zaqar").option("endpoint", server.url)
    with pytest.raises(PySparkException, match="'batchSize' must be `int` >= 1"):
        reader.option("batchSize", "0").load(queue)
    with pytest.raises(PySparkException, match="option 'queue'"):
        spark.readStream.format("zaqar").option("endpoint", server.url).load()
    stream = spark.readStream.format("zaqar").option("endpoint", server.url)
    query = stream.schema("ttl string").load(queue).writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="'ttl' is int, not string"):
        query.awaitTermination()
