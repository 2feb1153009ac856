"""Find the patterns in a dead-letter queue: Parquet tables and one HTML page.

Letters are grouped by error signature (the error text with numbers, ids and quoted words taken
out), body shape (the sorted top-level keys), source queue, claim counts and time. Everything is
SQL in the JVM; only aggregates reach the driver. Bodies are masked unless asked for.
"""

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from zaqar_lite.spark.jobs.masking import Samples, mask
from zaqar_lite.spark.jobs.page import Report, page
from zaqar_lite.spark.jobs.target import Summary, Target

# Where an error's text is looked for: a header, then the body.
_ERROR = """coalesce(headers['error'], headers['reason'], get_json_object(body, '$.error'),
    get_json_object(body, '$.error.message'), get_json_object(body, '$.exception'),
    get_json_object(body, '$.reason'), '(no error text)')"""
# In this order: what a pattern takes out, a later one can't see.
_TAKEN_OUT = (
    ("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "#"),
    ("\"[^\"]*\"|'[^']*'", "'#'"),
    (r"\d{1,3}(\.\d{1,3}){3}(:\d+)?", "#"),
    (r"\b0x[0-9a-f]+\b|\b[0-9a-f]{12,}\b", "#"),
    (r"\d+", "#"),
    (r"\s+", " "),
)
_TOP = 20
_BARS = 60


def dlq_report(
    spark: SparkSession,
    target: Target,
    output: str,
    *,
    samples: Samples = "keys",
    partitions: int = 8,
    letters: str | None = None,
) -> Summary:
    """Write `patterns/`, `histogram/`, `samples/` and `report.html` under `output`.

    Args:
        spark: the session.
        target: the dead-letter queue; it is browsed, and nothing in it changes.
        output: a directory; an earlier report in it is replaced.
        samples: what is shown of bodies: "none", "keys" or "full".
        partitions: ranges that are read side by side.
        letters: Parquet files (an archive) to read instead of the queue.
    """
    place = Path(output)
    place.mkdir(parents=True, exist_ok=True)
    read = spark.read.parquet(letters) if letters else target.read(spark, numPartitions=partitions)
    # The queue is read once. This table has the bodies, so it goes when the report is made.
    _classified(read).write.mode("overwrite").parquet(str(place / "read"))
    try:
        return _summarise(spark, spark.read.parquet(str(place / "read")), target, place, samples)
    finally:
        shutil.rmtree(place / "read", ignore_errors=True)


def _summarise(
    spark: SparkSession, found: DataFrame, target: Target, place: Path, samples: Samples
) -> Summary:
    patterns = _patterns(found)
    patterns.write.mode("overwrite").parquet(str(place / "patterns"))
    patterns = spark.read.parquet(str(place / "patterns"))
    top = [row.asDict() for row in patterns.orderBy(expr("letters desc")).limit(_TOP).collect()]
    histogram = _histogram(found)
    histogram.write.mode("overwrite").parquet(str(place / "histogram"))
    shown = _samples(found, top, samples)
    spark.createDataFrame(
        shown, "signature string, shape string, source string, id string, body string"
    ).coalesce(1).write.mode("overwrite").parquet(str(place / "samples"))
    sources = found.groupBy("source").count().orderBy(expr("count desc")).limit(_TOP).collect()
    claims = found.groupBy("claims").count().orderBy("claims").limit(_BARS).collect()
    times = spark.read.parquet(str(place / "histogram")).orderBy("at").collect()
    report = Report(
        queue=target.queue,
        made=dt.datetime.now(dt.UTC),
        letters=sum(row["count"] for row in times),
        patterns=patterns.count(),
        top=top,
        samples=shown,
        times=[
            (f"{row['at']:%Y-%m-%d %H:%M}" if row["at"] else "?", row["count"]) for row in times
        ],
        sources=[(row["source"] or "(none)", row["count"]) for row in sources],
        claims=[(str(row["claims"]), row["count"]) for row in claims],
    )
    (place / "report.html").write_text(page(report), encoding="utf-8")
    return {
        "letters": report.letters,
        "patterns": report.patterns,
        "sources": len(report.sources),
        "page": str(place / "report.html"),
    }


def _classified(rows: DataFrame) -> DataFrame:
    signature = f"lower(substring({_ERROR}, 1, 2000))"
    columns = rows.withColumn("signature", expr(signature))
    for pattern, instead in _TAKEN_OUT:
        literal = pattern.replace("\\", "\\\\").replace("'", "\\'")
        with_quotes = instead.replace("'", "\\'")
        columns = columns.withColumn(
            "signature", expr(f"regexp_replace(signature, '{literal}', '{with_quotes}')")
        )
    return columns.selectExpr(
        "id",
        "body",
        "dlq_source_queue as source",
        "coalesce(dlq_moved_at, created) as moved_at",
        "coalesce(dlq_claim_count, claim_count) as claims",
        "octet_length(body) as bytes",
        "substring(trim(signature), 1, 300) as signature",
        """coalesce(array_join(array_sort(json_object_keys(body)), ','),
           case when body like '[%' then '(list)' else '(value)' end) as shape""",
    )


def _patterns(found: DataFrame) -> DataFrame:
    return found.groupBy("signature", "shape", "source").agg(
        expr("count(*)").alias("letters"),
        expr("min(moved_at)").alias("first_seen"),
        expr("max(moved_at)").alias("last_seen"),
        expr("min(claims)").alias("claims_min"),
        expr("percentile_approx(claims, 0.5)").alias("claims_median"),
        expr("max(claims)").alias("claims_max"),
        expr("percentile_approx(bytes, 0.5)").alias("bytes_median"),
        expr("max(bytes)").alias("bytes_max"),
        expr("min(id)").alias("sample_first"),
        expr("max(id)").alias("sample_last"),
    )


def _histogram(found: DataFrame) -> DataFrame:
    ends = found.selectExpr(
        "unix_timestamp(min(moved_at)) as first", "unix_timestamp(max(moved_at)) as last"
    ).collect()[0]
    seconds = max(60, -(-((ends["last"] or 0) - (ends["first"] or 0) + 1) // _BARS))
    at = f"timestamp_seconds(floor(unix_timestamp(moved_at) / {seconds}) * {seconds})"
    return found.groupBy(expr(at).alias("at")).count()


def _samples(found: DataFrame, top: list[dict[str, Any]], samples: Samples) -> list[Any]:
    """The first and the last letter of each of the most frequent patterns, masked."""
    if samples == "none" or not top:
        return []
    wanted = {(row["signature"], row["shape"], row["source"]) for row in top}
    signatures = list({row["signature"] for row in top})
    ends = (
        found.where(found.signature.isin(signatures))
        .groupBy("signature", "shape", "source")
        .agg(
            expr("min_by(struct(id, body), id)").alias("a"),
            expr("max_by(struct(id, body), id)").alias("b"),
        )
        .collect()
    )
    return [
        (row["signature"], row["shape"], row["source"], letter["id"], mask(letter["body"], samples))
        for row in ends
        if (row["signature"], row["shape"], row["source"]) in wanted
        for letter in ([row["a"], row["b"]] if row["a"]["id"] != row["b"]["id"] else [row["a"]])
    ]
