"""A driver for a test to kill: `python killed_driver.py SERVER PROXY QUEUE LETTERS PLACE LEDGER`.

It streams a queue into files by claiming, and hangs in the middle of the second batch. It moves
dead letters through the proxy, which holds its deletes in the middle of the second batch.
"""

import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from zaqar_lite.spark import jobs, register
from zaqar_lite.spark.jobs.redrive import Redrive
from zaqar_lite.spark.jobs.target import Target
from zaqar_lite.spark.session import session

PLAN = Redrive(batch=10, server=False)


def to_files(
    spark: SparkSession, server: str, queue: str, place: Path, ledger: str
) -> StreamingQuery:
    """Start to stream a queue into files, in batches of 40, with its claims in `ledger`."""
    rows = spark.readStream.format("zaqar").options(
        endpoint=server,
        queue=queue,
        mode="claim",
        stateDir=ledger,
        maxMessagesPerTrigger="40",
    )
    return (
        hanging(rows.load(), place)
        .writeStream.format("json")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "out"))
    )


def hanging(rows: DataFrame, place: Path) -> DataFrame:
    """Hang at the body 50 while the file `hang` is there."""
    hang, reached = place / "hang", place / "reached"

    def waits(body: str) -> str:
        until = time.monotonic() + 600
        while body == "50" and hang.exists() and time.monotonic() < until:
            reached.touch()
            time.sleep(0.05)
        return body

    return rows.select("id", udf(waits, "string", useArrow=False)("body").alias("body"))


def main() -> None:
    server, proxy, queue, letters = sys.argv[1:5]
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # to start; it won't live long
    spark = session(
        "local[2]",
        **{"spark.driver.extraJavaOptions": quick, "spark.sql.shuffle.partitions": "2"},
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    target = Target(proxy, letters, page_size=5)
    moving = threading.Thread(target=lambda: jobs.redrive(spark, target, PLAN))
    moving.start()
    to_files(spark, server, queue, Path(sys.argv[5]), sys.argv[6]).awaitTermination()
    moving.join()


if __name__ == "__main__":
    main()
