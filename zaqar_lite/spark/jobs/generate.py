"""Make synthetic messages to experiment with."""

from pyspark.sql import SparkSession

from zaqar_lite.spark.jobs.target import Summary, Target


def generate(
    spark: SparkSession,
    target: Target,
    count: int,
    *,
    body_bytes: int = 200,
    delay: int = 0,
    partitions: int = 4,
    dry_run: bool = False,
) -> Summary:
    """Post `count` messages of about `body_bytes`, delayed evenly over 0 to `delay` seconds."""
    filler = max(0, body_bytes - 40)
    rows = spark.range(0, count, 1, partitions).selectExpr(
        f"to_json(named_struct('n', id, 'text', repeat('x', {filler}))) as body",
        *([f"cast(id % {delay + 1} as int) as delay"] if delay else []),
    )
    if dry_run:
        return {"dry_run": True, "rows": count}
    return target.write(rows)
