"""Fill a new queue from an archive."""

from pyspark.sql import SparkSession

from zaqar_lite.spark.jobs.target import Summary, Target
from zaqar_lite.spark.options import OptionError

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

    Raises:
        OptionError: a message still has to wait, and the queue ignores delays.
    """
    rows = spark.read.parquet(path)
    if where:
        rows = rows.where(where)
    rows = (
        rows.selectExpr(
            "body",
            "headers",
            "id as source_id",
            "cast(ttl - age - (unix_timestamp() - unix_timestamp(archived)) as int) as ttl",
            "delay_until as deliver_at",
            "created",
        )
        .where(f"ttl >= {_LEAST_TTL}")
        .dropDuplicates(["source_id"])
        .selectExpr(
            "body",
            "headers",
            "ttl",
            "deliver_at",
            "concat('backfill-', source_id) as idempotency_key",
            "created",
        )
    )
    if dry_run:
        return {"dry_run": True, "rows": rows.count()}
    with target.client() as client:
        delayed = client.get_queue(target.queue).get("_default_message_delay")
    if not delayed:
        if not rows.where("deliver_at > current_timestamp()").isEmpty():
            raise OptionError(
                f"Some messages still have to wait, and {target.queue!r} is a normal queue, which "
                "ignores delays: make it a delayed one, or leave them out (where)."
            )
        rows = rows.drop("deliver_at")
    ordered = rows.repartition(partitions).sortWithinPartitions("created").drop("created")
    return target.write(ordered, rate=rate, numPartitions=partitions)
