"""Archive a queue as Parquet files by queue and date."""

from pyspark.sql import SparkSession
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
    seen = [one.observedMetrics.get(OBSERVED) for one in query.recentProgress]
    batches = [row.asDict() for row in seen if row is not None and row["rows"]]
    return {
        "rows": sum(one["rows"] for one in batches),
        "bytes": sum(one["bytes"] or 0 for one in batches),
        "batches": len(batches),
        "removed": remove,
    }
