"""Count a queue, or an archive of it, by the hour."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from zaqar_lite.spark.jobs.target import Summary, Target


def stats(
    spark: SparkSession,
    target: Target,
    *,
    archive: str | None = None,
    output: str | None = None,
    dry_run: bool = False,
) -> Summary:
    """Roll messages up by queue and hour: counts, bytes, ages and claims.

    The rows come from the live queue, or from the Parquet files of `archive`. The rollup goes to
    Parquet at `output`, where one is given; the summary has its first 1,000 rows, and the messages
    of all. A dry run counts the messages and writes nothing.
    """
    if dry_run:
        found = target.read(spark, archive, includeBody="false")
        return {"dry_run": True, "messages": found.count()}
    rows = target.read(spark, archive)
    rollup = (
        rows.groupBy("queue", expr("date_format(created, 'yyyy-MM-dd HH:00')").alias("hour"))
        .agg(
            expr("count(*)").alias("messages"),
            expr("coalesce(sum(octet_length(body)), 0)").alias("bytes"),
            expr("percentile_approx(age, 0.5)").alias("age_median"),
            expr("percentile_approx(age, 0.99)").alias("age_p99"),
            expr("coalesce(sum(claim_count), 0)").alias("claims"),
            expr("max(claim_count)").alias("most_claims"),
        )
        .orderBy("queue", "hour")
        .cache()
    )
    if output is not None:
        rollup.write.mode("overwrite").parquet(output)
    hours = [row.asDict() for row in rollup.limit(1000).collect()]
    (whole,) = rollup.selectExpr("coalesce(sum(messages), 0) as messages").collect()
    rollup.unpersist()
    return {**whole.asDict(), "hours": hours}
