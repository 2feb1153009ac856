"""The report as one HTML page: its plots are inline SVG, and nothing is fetched from anywhere."""

import datetime as dt
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #ccc; padding:
.3rem .5rem; text-align: left; vertical-align: top } td.n { text-align: right } code, pre {
font-size: 13px; white-space: pre-wrap; word-break: break-all } svg { width: 100%; height: auto }
"""


def page(
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
        samples: signature, shape, source, id and body of some letters.
    """
    title = escape(f"Dead letters in {queue}")
    plots = "".join(f"<h2>{escape(name)}</h2>{_bars(points)}" for name, points in bars.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
</head><body><h1>{title}</h1>
<p>{whole["letters"]:,} letters in {whole["patterns"]:,} pattern{"s"[whole["patterns"] == 1 :]};
made {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC.</p>
{plots}
<h2>The most frequent patterns</h2>{_table(top, whole["letters"])}
<h2>Samples</h2>{_samples(samples)}
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


def _table(top: Sequence[Mapping[str, Any]], letters: int) -> str:
    rows = "".join(
        f'<tr><td class="n">{row["letters"]:,}</td>'
        f'<td class="n">{100 * row["letters"] / letters:.1f} %</td>'
        f"<td><code>{escape(row['signature'])}</code></td><td><code>{escape(row['shape'])}</code>"
        f"</td><td>{escape(row['source'] or '(none)')}</td>"
        f"<td>{row['claims_min']} / {row['claims_median']} / {row['claims_max']}</td>"
        f"<td>{_time(row['first_seen'])}</td><td>{_time(row['last_seen'])}</td></tr>"
        for row in top
    )
    return (
        "<table><tr><th>Letters<th>Share<th>Error signature<th>Body shape<th>Source"
        "<th>Claims: least / median / most<th>First<th>Last</tr>"
        f"{rows}</table>"
    )


def _samples(samples: Sequence[Sequence[str | None]]) -> str:
    if not samples:
        return "<p>None were asked for.</p>"
    rows = "".join(
        f"<tr><td><code>{escape(signature or '')}</code></td><td><code>{escape(one or '')}</code>"
        f"</td><td><pre>{escape(body or '')}</pre></td></tr>"
        for signature, _shape, _source, one, body in samples
    )
    return f"<table><tr><th>Error signature<th>Id<th>Body</tr>{rows}</table>"


def _time(value: dt.datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if value else "?"
