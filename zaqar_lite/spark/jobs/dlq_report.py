"""Find the patterns in a dead-letter queue: a Parquet table and one HTML page.

Letters are grouped by error signature (the last attempt's reason, or an error text in header or
body; numbers, ids and quoted words taken out), body shape (the sorted top-level keys), source
queue, claim counts and time. Everything is SQL in the JVM; only aggregates reach the driver. Bodies
are masked unless asked for. The page's plots are inline SVG, and it fetches nothing from anywhere.
"""

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, regexp_replace

from zaqar_lite.spark.jobs.target import Summary, Target
from zaqar_lite.spark.options import local_path

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
_PATTERN = (
    "Letters", "Share", "Error signature", "Body shape", "Source", "Claims: least / median / most",
    "First", "Last",
)  # fmt: skip
_SAMPLE = ("Signature", "Id", "Body")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #ccc; padding:
.3rem .5rem; text-align: left; vertical-align: top } td { white-space: pre-wrap; word-break:
break-word } svg { width: 100%; height: auto }
"""


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
    """Write `patterns/` (Parquet) and `report.html` under `output`.

    Args:
        spark: the session.
        target: the dead-letter queue; it is browsed, and nothing in it changes.
        output: a directory; an earlier report in it is replaced.
        samples: what is shown of bodies: "none", "keys" or "full".
        partitions: ranges that are read side by side.
        letters: Parquet files (an archive) to read instead of the queue.
        dry_run: count the letters, and write nothing.

    Returns:
        How many letters, patterns and sources there are, and where the page is.
    """
    if dry_run:
        return {"dry_run": True, "letters": target.read(spark, letters).count()}
    place = Path(local_path("output", output))
    place.mkdir(parents=True, exist_ok=True)
    read = target.read(spark, letters, numPartitions=partitions, columns="attempts")
    found = _classified(read).cache()
    try:
        return _summarise(spark, found, target, place, samples)
    finally:
        found.unpersist()


def _summarise(
    spark: SparkSession, found: DataFrame, target: Target, place: Path, samples: Samples
) -> Summary:
    """Write the table and the page."""
    _patterns(found).write.mode("overwrite").parquet(str(place / "patterns"))
    patterns = spark.read.parquet(str(place / "patterns"))
    top = [row.asDict() for row in patterns.orderBy(expr("letters desc")).limit(_TOP).collect()]
    whole = patterns.selectExpr(
        "count(*) as patterns",
        "coalesce(sum(letters), 0) as letters",
        "min(first_seen) as first",
        "max(last_seen) as last",
    ).collect()[0]
    times = _counts(found, _step(whole["first"], whole["last"]))
    sources = sorted(_counts(found, "source").items(), key=lambda one: -one[1])
    claims = list(_counts(found, "claims").items())[:_BARS]
    shown = _samples(found, top, samples)
    bars = {
        "When they came": {f"{at:%Y-%m-%d %H:%M}" if at else "?": n for at, n in times.items()},
        "Where they came from": {source or "(none)": n for source, n in sources[:_TOP]},
        "How often they were claimed": {str(number): n for number, n in claims},
    }
    file = place / "report.html"
    file.write_text(_page(target.queue, whole.asDict(), bars, top, shown), encoding="utf-8")
    counts = {"letters": whole["letters"], "patterns": whole["patterns"]}
    return {**counts, "sources": len(sources), "page": str(file)}


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


def _counts(found: DataFrame, by: str) -> dict[Any, int]:
    """Count letters by an expression, in its order."""
    rows = found.groupBy(expr(by).alias("by")).count().orderBy("by").collect()
    return {row["by"]: row["count"] for row in rows}


def _step(first: dt.datetime | None, last: dt.datetime | None) -> str:
    """Return the instant of a letter in SQL, rounded down so that there are about sixty."""
    span = 0 if first is None or last is None else int((last - first).total_seconds()) + 1
    seconds = max(60, -(-span // _BARS))
    return f"timestamp_seconds(floor(unix_timestamp(moved_at) / {seconds}) * {seconds})"


def _samples(found: DataFrame, top: list[dict[str, Any]], samples: Samples) -> list[Any]:
    """The first and the last letter of each of the most frequent patterns, masked."""
    if samples == "none" or not top:
        return []
    ids = [one for row in top for one in (row["sample_first"], row["sample_last"])]
    bodies = {row["id"]: row["body"] for row in found.where(found.id.isin(ids)).collect()}
    return [
        (row["signature"], one, mask(bodies.get(one), samples))
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


def _page(
    queue: str,
    whole: Mapping[str, Any],
    bars: Mapping[str, Mapping[str, int]],
    top: Sequence[Mapping[str, Any]],
    samples: Sequence[Sequence[str | None]],
) -> str:
    """Return the page. Everything that comes from a message is escaped.

    Args:
        queue: the dead-letter queue.
        whole: how many `letters` in how many `patterns`.
        bars: title of a plot -> label -> count.
        top: the most frequent patterns.
        samples: signature, id and body of some letters.
    """
    title = escape(f"Dead letters in {queue}")
    plots = "".join(f"<h2>{escape(name)}</h2>{_bars(points)}" for name, points in bars.items())
    patterns = [
        (
            f"{row['letters']:,}",
            f"{100 * row['letters'] / whole['letters']:.1f} %",
            row["signature"],
            row["shape"],
            row["source"] or "(none)",
            f"{row['claims_min']} / {row['claims_median']} / {row['claims_max']}",
            _time(row["first_seen"]),
            _time(row["last_seen"]),
        )
        for row in top
    ]
    shown = _table(_SAMPLE, samples) if samples else "<p>None were asked for.</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
</head><body><h1>{title}</h1>
<p>{whole["letters"]:,} letters in {whole["patterns"]:,} pattern{"s"[whole["patterns"] == 1 :]};
made {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC.</p>
{plots}
<h2>The most frequent patterns</h2>{_table(_PATTERN, patterns)}
<h2>Samples</h2>{shown}
</body></html>
"""


def _bars(points: Mapping[str, int]) -> str:
    """Draw a bar for each label."""
    if not points:
        return "<p>None.</p>"
    most = max(points.values())
    parts = [
        f'<text x="0" y="{24 * index + 16}" font-size="13">{escape(label[:40])}</text>'
        f'<rect x="300" y="{24 * index + 4}" width="{max(1.0, 500 * count / most):.1f}" '
        f'height="16" fill="#4269d0"/><text x="{310 + 500 * count / most:.1f}" '
        f'y="{24 * index + 16}" font-size="12">{count:,}</text>'
        for index, (label, count) in enumerate(points.items())
    ]
    return f'<svg viewBox="0 0 900 {24 * len(points) + 4}" role="img">{"".join(parts)}</svg>'


def _table(titles: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    """Write a table; the titles are those of its columns."""
    heads = "<th>".join(titles)
    lines = "<tr>".join("".join(f"<td>{escape(cell or '')}" for cell in row) for row in rows)
    return f"<table><tr><th>{heads}<tr>{lines}</table>"


def _time(value: dt.datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if value else "?"
