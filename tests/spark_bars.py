"""Measure how fast Spark reads: `python -m tests.spark_bars [MESSAGES]`, 200,000 of 200 bytes.

A batch read of all, and a stream that claims 50,000 messages a trigger, writes files and deletes,
with Spark, the embedded store's server and this program on one machine. Rows a second, the start of
Spark apart: the median of three rounds of each.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.server import ServerProcess
from zaqar_lite.client import Client
from zaqar_lite.spark import register
from zaqar_lite.spark.session import session

ROUNDS = 3


def main() -> None:
    """Print both rates."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    spark = session("local[2]")
    register(spark)
    with tempfile.TemporaryDirectory() as home, ServerProcess(f"embedded://{home}/store") as server:
        with Client(server.url, project="default") as client:
            batch, stream = [], []
            for number in range(ROUNDS):
                queue = f"bars-{number}"
                client.post_all(queue, ("x" * 198 for _ in range(count)))
                batch.append(rate(count, lambda: read(spark, server.url, queue)))  # noqa: B023
                place = Path(home, queue)
                stream.append(rate(count, lambda: claim(spark, server.url, queue, place)))  # noqa: B023
                assert client.stats(queue).total == 0
    print(f"batch read:      {statistics.median(batch):9,.0f} rows/s  {batch}")
    print(f"claiming stream: {statistics.median(stream):9,.0f} rows/s  {stream}")


def rate(count: int, run: Callable[[], int]) -> float:
    """Run something that handles `count` rows; answer how many a second."""
    begun = time.monotonic()
    assert run() == count
    return round(count / (time.monotonic() - begun))


def read(spark: SparkSession, url: str, queue: str) -> int:
    """Read a queue; answer how many rows had a body."""
    reader = spark.read.format("zaqar").option("endpoint", url).option("queue", queue)
    return reader.load().filter("length(body) > 0").count()


def claim(spark: SparkSession, url: str, queue: str, place: Path) -> int:
    """Claim, write and delete all of a queue; answer how many rows were written."""
    options = {"mode": "claim", "stateDir": place / "ledger", "maxMessagesPerTrigger": 50_000}
    reader = spark.readStream.format("zaqar").option("endpoint", url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    writer = reader.load().select("id", "body").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(place / "out"))
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


if __name__ == "__main__":
    main()
