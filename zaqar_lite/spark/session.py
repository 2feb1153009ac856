"""Make the Spark session of the jobs: on this machine unless told otherwise."""

import os
import sys

from pyspark.sql import SparkSession

_SQL: dict[str, str | bool] = {
    # Jobs sum up the results of their batches, so Spark must keep all of them.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": True,
}
"""Also for a remote session."""
_CLASSIC = _SQL | {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.speculation": False,
}
_LOCAL = _CLASSIC | {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Spark's 200 are for a cluster: here they are 200 tasks with nothing to do.
    "spark.sql.shuffle.partitions": "8",
}


def session(master: str | None = None, **settings: str) -> SparkSession:
    """Get the session, or make one with what the source needs.

    Workers run this interpreter. Filters are pushed down. Speculation is off, since a second copy
    of a task sends its rows a second time. spark-submit's own settings win over the master here.
    """
    _set_environment(master)
    builder = SparkSession.builder.appName("zaqar-lite")
    if master is not None:
        builder = builder.master(master)
    # A cluster's executors must reach the driver.
    own = _LOCAL if (master or "").startswith("local") else _CLASSIC
    return builder.config(map={**own, **settings}).getOrCreate()


def remote_session(url: str, **settings: str) -> SparkSession:
    """Get a session of Spark Connect: `sc://HOST:15002`, or `local[2]` for a server of its own.

    The server's processes need this package, and the server decides about speculation, which
    should be off: a second copy of a task sends its rows a second time.
    """
    _set_environment(url)
    return SparkSession.builder.remote(url).config(map={**_SQL, **settings}).getOrCreate()


def _set_environment(where: str | None) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if (where or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
