"""Fill a new queue from an archive."""

from pyspark.sql import DataFrame, SparkSession

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
    ttl: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
) -> Summary:
    """Post the messages of an archive that have not expired, with the rest of their ttl.

    A message's key is its original id, so a repetition posts nothing twice while the server
    remembers the key. What has less than a minute to live is skipped, and counted as `expired`.
    With `ttl` every message lives so many seconds from now, expired ones too.

    Raises:
        OptionError: a message still has to wait, and the queue ignores delays.
    """
    rows = spark.read.option("mergeSchema", "true").parquet(path)  # older files have no group
    if where:
        rows = rows.where(where)
    left = "cast(ttl - age - (unix_timestamp() - unix_timestamp(archived)) as int)"
    found = rows.selectExpr(
        "body",
        "headers",
        f"{left if ttl is None else ttl} as ttl",
        "delay_until as deliver_at",
        "concat('backfill-', id) as idempotency_key",
        "created",
        *(["`group`"] if "group" in rows.columns else []),
    ).dropDuplicates(["idempotency_key"])
    expired = 0 if ttl else found.where(f"ttl < {_LEAST_TTL}").count()
    rows = found.where(f"ttl >= {_LEAST_TTL}")
    if dry_run:
        return {"dry_run": True, "rows": rows.count(), "expired": expired}
    ordered = _without_past_delays(rows, target).repartition(partitions)
    ordered = ordered.sortWithinPartitions("created").drop("created")
    return {**target.write(ordered, rate=rate), "expired": expired}


def _without_past_delays(rows: DataFrame, target: Target) -> DataFrame:
    """Leave the column `deliver_at` out for a queue that ignores it, if nothing has to wait."""
    with target.client() as client:
        if client.get_queue(target.queue).get("_default_message_delay"):
            return rows
    if not rows.where("deliver_at > current_timestamp()").isEmpty():
        raise OptionError(
            f"Some messages still have to wait, and {target.queue!r} is a normal queue, which "
            "ignores delays: make it a delayed one, or leave them out (where)."
        )
    return rows.drop("deliver_at")
