"""A driver of jobs elsewhere: `python -m tests.spark.jobs_driver SERVER QUEUE PLACE WHERE`.

`WHERE` is `cluster`, two executors that are processes of their own, or `connect`, a server of
Spark Connect. It publishes, reads, streams by claims and redrives, and prints what it did as a line
of JSON.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from zaqar_lite.client import Client
from zaqar_lite.spark import jobs, register
from zaqar_lite.spark.jobs.publish import Publication
from zaqar_lite.spark.jobs.redrive import Redrive
from zaqar_lite.spark.jobs.target import Target
from zaqar_lite.spark.session import remote_session, session

ROWS = 1_000


def started(where: str, place: Path) -> SparkSession:
    """Start the cluster, or the server of Spark Connect, and get a session on it."""
    if where == "connect":
        return remote_session("local[2]", **{"spark.sql.shuffle.partitions": "2"})
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    spark = session(
        "local-cluster[2,1,512]",
        **{
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": quick,
            "spark.executor.extraJavaOptions": quick,
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(place / "local"),
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    # With the driver there are three; on a busy machine they register late.
    until = time.monotonic() + 120
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() != 3:
        assert time.monotonic() < until, "there are no two executors"
        time.sleep(0.1)
    return spark


def main() -> None:
    server, queue, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = started(sys.argv[4], place)
    register(spark)
    target = Target(server, queue, page_size=100)
    file, archive = str(place / "rows"), str(place / "archive")
    spark.range(0, ROWS, 1, 4).selectExpr("id as n").write.parquet(file)
    published = jobs.publish(spark, target, Publication(file, rate=5_000))
    read = target.read(spark, numPartitions=4).count()
    counted = jobs.stats(spark, target)
    claimed = jobs.archive(spark, target, archive, str(place / "state"), remove=True, batch=400)
    found = spark.read.parquet(archive).select("id").distinct().count()

    letters = f"{queue}-dead"
    with Client(server) as client:
        client.ensure_queue(queue, {"_max_claim_count": 1, "_dead_letter_queue": letters})
        client.post_all(queue, range(40))
        while held := client.create_claim(queue, limit=100):
            client.release_claim(queue, held.id)
    dead = Target(server, letters, page_size=10)
    reported = jobs.dlq_report(spark, dead, str(place / "report"))
    moved = jobs.redrive(spark, dead, Redrive(batch=30, server=False))
    told = {
        "stored": published["stored"],
        "read": read,
        "counted": counted["messages"],
        "claimed": claimed["rows"],
        "archived": found,
        "letters": reported["letters"],
        "moved": moved["moved"],
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
