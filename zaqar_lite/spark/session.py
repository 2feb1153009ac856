"""Make the Spark session of the jobs: on this machine unless told otherwise."""

import os
import sys

from pyspark.sql import SparkSession

# These are also set on a remote session.
_SQL = {
    # Jobs sum up the results of their batches, so Spark must keep all of them.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def session(master: str | None = None, **settings: str) -> SparkSession:
    """Get the session, or make one with what the source needs.

    Workers run this interpreter. Filters are pushed down. Speculation is off, since a second copy
    of a task sends its rows a second time. spark-submit's own settings win over the master here.
    """
    _here()
    builder = SparkSession.builder.appName("zaqar-lite")
    if master is not None:
        builder = builder.master(master).config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        if master.startswith("local"):
            # Spark's 200 are for a cluster: here they are 200 tasks with nothing to do.
            builder = builder.config("spark.sql.shuffle.partitions", "8")
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.speculation", "false")
    )
    for name, value in (_SQL | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def remote_session(url: str, **settings: str) -> SparkSession:
    """Get a session of Spark Connect: `sc://HOST:15002`, or `local[2]` for a server of its own.

    The server's processes need this package, and the server decides about speculation, which
    should be off: a second copy of a task sends its rows a second time.
    """
    if url.startswith("local"):
        _here()
    builder = SparkSession.builder.remote(url)
    for name, value in (_SQL | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _here() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
