"""Measure the data source on this machine: `python -m tests.spark.measure`.

Environment: ZAQAR_SPARK_ROWS (100000), ZAQAR_SPARK_RUNS (3), ZAQAR_SPARK_PARTITIONS (8),
ZAQAR_SPARK_STORE (an embedded store in a temporary directory). One JSON line for each figure: the
median of the runs, messages a second. The session is warm: one small write and read come first.
"""

import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.server import ServerProcess
from tests.spark.losing_proxy import LosingProxy
from zaqar_lite.client import Client
from zaqar_lite.spark import jobs, register
from zaqar_lite.spark.jobs.publish import Publication
from zaqar_lite.spark.jobs.target import Target
from zaqar_lite.spark.session import session

ROWS = int(os.environ.get("ZAQAR_SPARK_ROWS", "100000"))
RUNS = int(os.environ.get("ZAQAR_SPARK_RUNS", "3"))
PARTITIONS = int(os.environ.get("ZAQAR_SPARK_PARTITIONS", "8"))
SETTINGS = {"ZAQAR_MAX_MESSAGES_PER_PAGE": "1000", "ZAQAR_MAX_MESSAGES_PER_CLAIM_OR_POP": "1000"}


def timed(name: str, job: Callable[[], object], *, runs: int = RUNS) -> None:
    seconds = []
    for _ in range(runs):
        started = time.monotonic()
        job()
        seconds.append(time.monotonic() - started)
    median = statistics.median(seconds)
    figures = {"name": name, "rows": ROWS, "seconds": round(median, 2)}
    print(json.dumps({**figures, "per_second": round(ROWS / median)}), flush=True)


def exact(url: str, queue: str, expected: int) -> None:
    with Client(url) as client:
        total = client.stats(queue).total
    if total != expected:
        sys.exit(f"{queue} holds {total} messages, not {expected}")


def publish(spark: SparkSession, file: str, url: str, server: str) -> str:
    queue = f"q{uuid.uuid4().hex}"
    jobs.publish(spark, Target(url, queue), Publication(file, body="body"))
    exact(server, queue, ROWS)
    return queue


def claim(spark: SparkSession, url: str, queue: str, place: Path) -> None:
    options = {"endpoint": url, "queue": queue, "mode": "claim", "pageSize": "1000"}
    rows: DataFrame = (
        spark.readStream.format("zaqar")
        .options(**options, stateDir=str(place / f"ledger-{queue}"), maxMessagesPerTrigger="50000")
        .load()
    )
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(place / f"checkpoint-{queue}"))
    writer.start(str(place / f"out-{queue}")).awaitTermination()
    exact(url, queue, 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        store = os.environ.get("ZAQAR_SPARK_STORE", f"embedded://{place / 'store'}")
        spark = session("local[2,3]", **{"spark.local.dir": name, "spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        file = str(place / "rows.parquet")
        body = "to_json(named_struct('n', id, 'text', repeat('x', 150))) as body"
        spark.range(0, ROWS, 1, PARTITIONS).selectExpr(body).write.parquet(file)
        with ServerProcess(store, env=SETTINGS) as server:
            warm = Target(server.url, "warm", page_size=1000)
            jobs.generate(spark, warm, 1000)
            warm.read(spark).count()
            queues: list[str] = []
            url = server.url
            timed("publish", lambda: queues.append(publish(spark, file, url, url)))
            with LosingProxy(url) as proxy:
                timed("publish through a proxy", lambda: publish(spark, file, proxy.url, url))
                proxy.lose = lambda number: number % 10 == 9
                timed(
                    "publish, every tenth answer lost",
                    lambda: publish(spark, file, proxy.url, url),
                )
            timed("claim to Parquet", lambda: claim(spark, url, queues.pop(), place))
            letters = Target(url, publish(spark, file, url, url), page_size=1000)
            report = str(place / "report")
            timed("dlq-report", lambda: jobs.dlq_report(spark, letters, report), runs=1)
        spark.stop()


if __name__ == "__main__":
    main()
