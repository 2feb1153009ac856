"""Fill a new queue from an archive."""

from pyspark.sql import SparkSession

from zaqar_lite.spark.jobs.target import Summary, Target

_LEAST_TTL = 60  # seconds, the server's


def backfill(
    spark: SparkSession,
    target: Target,
    path: str,
    *,
    where: str | None = None,
    partitions: int = 4,
    rate: float | None = None,
    dry_run: bool = False,
) -> Summary:
    """Post what an archive holds and is still alive, with the rest of its ttl.

    A message's key is its original id, so a repetition posts nothing twice while the server
    remembers the key. What has less than a minute to live is left out.
    """
    rows = spark.read.parquet(path)
    if where:
        rows = rows.where(where)
    rows = (
        rows.selectExpr(
            "body",
            "headers",
            "id as key",
            "cast(ttl - age - (unix_timestamp() - unix_timestamp(archived)) as int) as ttl",
            "delay_until as deliver_at",
            "created",
        )
        .where(f"ttl >= {_LEAST_TTL}")
        .dropDuplicates(["key"])
        .withColumnRenamed("key", "source_id")
        .selectExpr(
            "body",
            "headers",
            "ttl",
            "deliver_at",
            "concat('backfill-', source_id) as key",
            "created",
        )
    )
    if dry_run:
        return {"dry_run": True, "rows": rows.count()}
    ordered = rows.repartition(partitions).sortWithinPartitions("created").drop("created")
    return target.write(ordered, rate=rate, numPartitions=partitions)
