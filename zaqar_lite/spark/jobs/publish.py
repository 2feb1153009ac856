"""Publish files as messages, or synthetic messages to experiment with."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from zaqar_lite.spark.jobs.target import Summary, Target

FORMATS = ("parquet", "csv", "json", "orc")
_COLUMNS = {
    "ttl": "int", "delay": "double", "key": "string", "idempotency_key": "string",
    "group": "string",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Publication:
    """What to publish; `body`, `ttl`, `delay`, `group` and the keys are columns or SQL expressions.

    `key` is kept with its message, the server's jobs choose by `group`, and rows of one
    `idempotency_key` are stored once. `body` by default is the whole row as a JSON object. `run_id`
    makes a repetition harmless. `rate` is in messages a second over the whole job. Rows that can't
    be messages are written to the directory `rejects`, and stop the job where there is none.
    """

    path: str
    format: str = "parquet"
    body: str = "to_json(struct(*))"
    ttl: str | None = None
    delay: str | None = None
    key: str | None = None
    idempotency_key: str | None = None
    group: str | None = None
    where: str | None = None
    run_id: str | None = None
    rate: float | None = None
    rejects: str | None = None
    on_ignored_delay: str = "fail"
    partitions: int = 4
    batch_size: int = 100


def publish(
    spark: SparkSession, target: Target, publication: Publication, *, dry_run: bool = False
) -> Summary:
    """Post a message for every row of some files; a dry run counts rows and bytes only."""
    rows = _rows(spark, publication)
    if dry_run:
        found = rows.selectExpr(
            "count(*) as rows",
            "coalesce(sum(octet_length(body)), 0) as bytes",
            "coalesce(max(octet_length(body)), 0) as largest",
        ).collect()[0]
        return {"dry_run": True, **found.asDict()}
    if publication.idempotency_key:
        # Only rows with keys of their own may be dealt out anew: other keys go by partition.
        rows = rows.repartition(publication.partitions)
    return target.write(
        rows,
        runId=publication.run_id,
        rate=publication.rate,
        batchSize=publication.batch_size,
        onInvalidRow="skip" if publication.rejects else "fail",
        rejectPath=publication.rejects,
        onIgnoredDelay=publication.on_ignored_delay,
    )


def _rows(spark: SparkSession, publication: Publication) -> DataFrame:
    reader = spark.read.format(publication.format)
    if publication.format == "csv":
        reader = reader.options(header=True, inferSchema=True, escape='"')  # as RFC 4180 has it
    rows = reader.load(publication.path)
    if publication.where:
        rows = rows.where(publication.where)
    columns = [expr(publication.body).cast("string").alias("body")]
    for name, kind in _COLUMNS.items():
        if sql := getattr(publication, name):
            columns.append(expr(sql).cast(kind).alias(name))
    return rows.select(*columns)


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
