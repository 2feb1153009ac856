"""Find the patterns in a dead-letter queue: Parquet tables and one HTML page.

Letters are grouped by error signature (the last attempt's reason, or an error text in header or
body; numbers, ids and quoted words taken out), body shape (the sorted top-level keys), source
queue, claim counts and time. Everything is SQL in the JVM; only aggregates reach the driver. Bodies
are masked unless asked for.
"""

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, regexp_replace

from zaqar_lite.spark.jobs.report_page import page
from zaqar_lite.spark.jobs.target import Summary, Target

Samples = Literal["none", "keys", "full"]
_MOST = 2_000  # characters of a body that a sample shows
# Why the last attempt failed, as its worker or the server said.
_REASON = """nullif(concat_ws(': ', try_element_at(attempts, -1).reason,
    try_element_at(attempts, -1).detail), '')"""
# Where an error's text is looked for otherwise: a header, then the body.
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
    dry_run: bool = False,
) -> Summary:
    """Write `patterns/`, `histogram/`, `samples/` and `report.html` under `output`.

    Args:
        spark: the session.
        target: the dead-letter queue; it is browsed, and nothing in it changes.
        output: a directory; an earlier report in it is replaced.
        samples: what is shown of bodies: "none", "keys" or "full".
        partitions: ranges that are read side by side.
        letters: Parquet files (an archive) to read instead of the queue.
        dry_run: count the letters, and write nothing.

    Returns:
        Letters, patterns, sources, the page, and the seconds of the read and of the rest.
    """
    if dry_run:
        return {"dry_run": True, "letters": target.read(spark, letters).count()}
    place = Path(unquote(urlsplit(output).path) if output.startswith("file:") else output)
    place.mkdir(parents=True, exist_ok=True)
    read = target.read(spark, letters, numPartitions=partitions, columns="attempts")
    found = _classified(read).cache()
    try:
        started = time.monotonic()
        found.count()  # the queue is read here, once
        read_by = time.monotonic()
        summary = _summarise(spark, found, target, place, samples)
        seconds = {"read_seconds": read_by - started, "report_seconds": time.monotonic() - read_by}
        return summary | {name: round(value, 3) for name, value in seconds.items()}
    finally:
        found.unpersist()


def _summarise(
    spark: SparkSession, found: DataFrame, target: Target, place: Path, samples: Samples
) -> Summary:
    """Write the tables and the page: two passes over the letters, and one for the samples."""
    _patterns(found).write.mode("overwrite").parquet(str(place / "patterns"))
    patterns = spark.read.parquet(str(place / "patterns"))
    top = [row.asDict() for row in patterns.orderBy(expr("letters desc")).limit(_TOP).collect()]
    whole = patterns.selectExpr(
        "count(*) as patterns",
        "coalesce(sum(letters), 0) as letters",
        "min(first_seen) as first",
        "max(last_seen) as last",
    ).collect()[0]
    sources = patterns.groupBy("source").agg(expr("sum(letters)").alias("letters"))
    times, claims = _counted(found, whole["first"], whole["last"])
    _write_small(spark, times.items(), "at timestamp, count long", place / "histogram")
    shown = _samples(found, top, samples)
    columns = "signature string, shape string, source string, id string, body string"
    _write_small(spark, shown, columns, place / "samples")
    ranked = sources.orderBy(expr("letters desc")).limit(_TOP).collect()
    bars = {
        "When they came": {f"{at:%Y-%m-%d %H:%M}" if at else "?": n for at, n in times.items()},
        "Where they came from": {row["source"] or "(none)": row["letters"] for row in ranked},
        "How often they were claimed": {str(number): n for number, n in claims.items()},
    }
    file = place / "report.html"
    file.write_text(page(target.queue, whole.asDict(), bars, top, shown), encoding="utf-8")
    counts = {"letters": whole["letters"], "patterns": whole["patterns"]}
    return {**counts, "sources": len(ranked), "page": str(file)}


def _write_small(spark: SparkSession, rows: Iterable[Any], columns: str, place: Path) -> None:
    made = spark.createDataFrame(list(rows), columns)
    made.coalesce(1).write.mode("overwrite").parquet(str(place))


def _classified(rows: DataFrame) -> DataFrame:
    error = f"coalesce({_REASON}, {_ERROR})" if "attempts" in rows.columns else _ERROR
    signature = f"lower(substring({error}, 1, 2000))"
    columns = rows.withColumn("signature", expr(signature))
    for pattern, instead in _TAKEN_OUT:
        columns = columns.withColumn("signature", regexp_replace("signature", pattern, instead))
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


def _counted(
    found: DataFrame, first: dt.datetime | None, last: dt.datetime | None
) -> tuple[dict[dt.datetime | None, int], dict[int | None, int]]:
    """Count letters by time (about sixty steps) and by claims (the sixty lowest)."""
    span = 0 if first is None or last is None else int((last - first).total_seconds()) + 1
    seconds = max(60, -(-span // _BARS))
    at = f"timestamp_seconds(floor(unix_timestamp(moved_at) / {seconds}) * {seconds})"
    cells = found.groupBy(expr(at).alias("at"), "claims").count().collect()
    times: Counter[dt.datetime | None] = Counter()
    claims: Counter[int | None] = Counter()
    for cell in cells:
        times[cell["at"]] += cell["count"]
        claims[cell["claims"]] += cell["count"]
    by_time = sorted(times, key=lambda one: (one is not None, one))
    by_claims = sorted(claims, key=lambda one: (one is not None, one))[:_BARS]
    return {one: times[one] for one in by_time}, {one: claims[one] for one in by_claims}


def _samples(found: DataFrame, top: list[dict[str, Any]], samples: Samples) -> list[Any]:
    """The first and the last letter of each of the most frequent patterns, masked."""
    if samples == "none" or not top:
        return []
    ids = [one for row in top for one in (row["sample_first"], row["sample_last"])]
    bodies = {row["id"]: row["body"] for row in found.where(found.id.isin(ids)).collect()}
    return [
        (row["signature"], row["shape"], row["source"], one, mask(bodies.get(one), samples))
        for row in top
        for one in dict.fromkeys((row["sample_first"], row["sample_last"]))
    ]


def mask(body: str | None, samples: Samples) -> str | None:
    """Return what may be shown of a body: nothing, its keys with types for values, or all of it.

    At most 2,000 characters.
    """
    if body is None or samples == "none":
        return None
    if samples == "full":
        return body[:_MOST]
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "(not JSON)"
    return json.dumps(_types(value), ensure_ascii=False)[:_MOST]


def _types(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {key: _types(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_types(one) for one in value[:1]]
    names = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
    return names[type(value)]
