"""Make the Spark session of the jobs: on this machine unless told otherwise."""

import os
import sys

from pyspark.sql import SparkSession


def session(master: str | None = None, **settings: str) -> SparkSession:
    """Get the session, or make one with what the source needs.

    Workers run this interpreter. Filters are pushed down. Speculation is off, since a second copy
    of a task sends its rows a second time. spark-submit's own settings win over the master here.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
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
        # Jobs add up what their batches did: none of them may be forgotten.
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
