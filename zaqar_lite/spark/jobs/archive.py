"""Archive a queue as Parquet files by queue and date."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import expr

from zaqar_lite.spark.jobs.progress import OBSERVED
from zaqar_lite.spark.jobs.target import Summary, Target


def archive(
    spark: SparkSession,
    target: Target,
    path: str,
    state: str,
    *,
    remove: bool = False,
    batch: int = 10_000,
    dry_run: bool = False,
) -> Summary:
    """Append what is in the queue now, and was not archived yet, to `path`.

    `state` is a directory (a path or a URI) that remembers what is archived; keep one per queue
    and path. The files are written exactly once. With `remove` messages are claimed, and deleted
    only after their files are complete; delayed messages and those that others hold are left.
    """
    if dry_run:
        return {"dry_run": True, "rows": target.read(spark, includeBody="false").count()}
    options = {**target.options(), "maxMessagesPerTrigger": str(batch)}
    if remove:
        options |= {"mode": "claim", "stateDir": f"{state}/ledger"}
    else:
        options |= {"failOnDataLoss": "false"}
    rows = spark.readStream.format("zaqar").options(**options).load()
    query = (
        rows.selectExpr("*", "current_timestamp() as archived", "to_date(created) as date")
        .observe(OBSERVED, expr("count(*) as rows"), expr("sum(octet_length(body)) as bytes"))
        .writeStream.format("parquet")
        .partitionBy("queue", "date")
        .option("checkpointLocation", f"{state}/checkpoint-{options.get('mode')}")
        .trigger(availableNow=True)
        .start(path)
    )
    query.awaitTermination()
    told = [_observed(one.observedMetrics.get(OBSERVED)) for one in query.recentProgress]
    batches = [(rows, octets or 0) for rows, octets in told if rows]
    return {
        "rows": sum(rows for rows, _octets in batches),
        "bytes": sum(octets for _rows, octets in batches),
        "batches": len(batches),
        "removed": remove,
    }


def _observed(row: Row | None) -> Sequence[Any]:
    """Rows and bytes of a trigger; Spark Connect packs them into one column, `values`."""
    if row is None:
        return (0, 0)
    values: Sequence[Any] = row.asDict().get("values", row)
    return values or (0, 0)
