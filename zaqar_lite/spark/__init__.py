"""Zaqar on Spark: the data source `zaqar` and jobs over it, all through the SDK.

    spark.read.format("zaqar").option("endpoint", URL).option("queue", "orders").load()
    rows.write.format("zaqar").mode("append").option("endpoint", URL).option("queue", "q").save()

Installed from a wheel the source is found by itself; elsewhere call `register(spark)` first.
"""

from pyspark.sql import SparkSession

from zaqar_lite.spark.source import ZaqarDataSource

__all__ = ["ZaqarDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the format `zaqar` known to a session."""
    spark.dataSource.register(ZaqarDataSource)
