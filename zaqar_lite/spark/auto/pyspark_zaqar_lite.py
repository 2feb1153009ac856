"""Spark looks into every top-level module whose name begins with `pyspark_` for `DefaultSource`.

The wheel maps this package to `pyspark_zaqar_lite`, so that the format `zaqar` needs no call.
"""

from zaqar_lite.spark.source import ZaqarDataSource as DefaultSource

__all__ = ["DefaultSource"]
