"""Archive a queue as Parquet files by queue and date, and fill a new queue from them."""

from collections.abc import Callable

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery

from zaqar_lite.spark.jobs.target import Summary, Target
from zaqar_lite.spark.options import OptionError

_OBSERVED = "zaqar"  # the name of the query's metrics
_LEAST_TTL = 60  # seconds, the server's


def archive(
    spark: SparkSession,
    target: Target,
    path: str,
    state: str,
    *,
    remove: bool = False,
    batch: int = 10_000,
    dry_run: bool = False,
    on_progress: Callable[[int], object] | None = None,
) -> Summary:
    """Append what is in the queue now, and was not archived yet, to `path`.

    `state` is a directory (a path or a URI) that remembers what is archived. Each queue has its
    own, and its own `path`. Files are written exactly once. With `remove` messages are claimed, and
    deleted only after their files are complete; delayed ones and those that others hold are left.
    `on_progress` is told about once a second how many rows are archived so far.

    Raises:
        OptionError: `path` has files of another state, or of this one without or with `remove`.
    """
    if dry_run:
        return {"dry_run": True, "rows": target.read(spark, includeBody="false").count()}
    options = {**target.options(), "maxMessagesPerTrigger": str(batch), "columns": "group"}
    if remove:
        options |= {"mode": "claim", "stateDir": f"{state}/ledger"}
    else:
        options |= {"failOnDataLoss": "false"}
    checkpoint = f"{state}/checkpoint-{options.get('mode')}"
    # Spark writes no batch whose number `path` has of another query: it would only be removed.
    if _has_files(spark, path) and not _has_files(spark, f"{checkpoint}/offsets"):
        text = f"{path} has files of another state: each queue, and --remove, needs its own path"
        raise OptionError(text)
    rows = spark.readStream.format("zaqar").options(**options).load()
    query = (
        rows.selectExpr("*", "current_timestamp() as archived", "to_date(created) as date")
        .observe(_OBSERVED, expr("count(*) as rows"), expr("sum(octet_length(body)) as bytes"))
        .writeStream.format("parquet")
        .partitionBy("queue", "date")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(path)
    )
    while not query.awaitTermination(1):
        if on_progress is not None:
            on_progress(sum(rows for rows, _octets in _batches(query)))
    batches = _batches(query)
    return {
        "rows": sum(rows for rows, _octets in batches),
        "bytes": sum(octets for _rows, octets in batches),
        "batches": len(batches),
        "removed": remove,
    }


def _has_files(spark: SparkSession, place: str) -> bool:
    try:
        return not spark.read.format("binaryFile").load(place).select("path").isEmpty()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise


def _batches(query: StreamingQuery) -> list[tuple[int, int]]:
    """Return the rows and bytes of each batch that had any.

    Spark Connect packs the two into one column, `values`.
    """
    told = [one.observedMetrics.get(_OBSERVED) for one in query.recentProgress]
    found = [row.asDict().get("values", row) or (0, 0) for row in told if row is not None]
    return [(rows, octets or 0) for rows, octets in found if rows]


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
    expired, rows = 0, found  # of a `ttl` that is too short the server says so
    if ttl is None:
        expired = found.where(f"ttl < {_LEAST_TTL}").count()
        rows = found.where(f"ttl >= {_LEAST_TTL}")
    if dry_run:
        return {"dry_run": True, "rows": rows.count(), "expired": expired}
    ordered = _without_past_delays(rows, target).repartition(partitions)
    ordered = ordered.sortWithinPartitions("created").drop("created")
    return {**target.write(ordered, rate=rate), "expired": expired}


def _without_past_delays(rows: DataFrame, target: Target) -> DataFrame:
    """Leave the column `deliver_at` out for a queue that ignores it, if nothing has to wait."""
    with target.client() as client:
        delays = client.get_queue(target.queue).get("_default_message_delay")
    if delays or not rows.where("deliver_at > current_timestamp()").isEmpty():
        return rows
    return rows.drop("deliver_at")
