"""The report as one HTML page: its plots are inline SVG, and nothing is fetched from anywhere."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #ccc; padding:
.3rem .5rem; text-align: left; vertical-align: top } td.n { text-align: right } code, pre {
font-size: 13px; white-space: pre-wrap; word-break: break-all } svg { width: 100%; height: auto }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows; bars are pairs of label and count."""

    queue: str
    made: dt.datetime
    letters: int
    patterns: int
    top: Sequence[dict[str, Any]]
    samples: Sequence[tuple[str, str, str | None, str, str | None]]
    times: Sequence[tuple[str, int]]
    sources: Sequence[tuple[str, int]]
    claims: Sequence[tuple[str, int]]


def page(report: Report) -> str:
    """Return the page. Everything that comes from a message is escaped."""
    title = escape(f"Dead letters in {report.queue}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
</head><body><h1>{title}</h1>
<p>{report.letters:,} letters in {report.patterns:,} pattern{"" if report.patterns == 1 else "s"};
made {report.made:%Y-%m-%d %H:%M} UTC.</p>
<h2>When they came</h2>{_bars(report.times)}
<h2>Where they came from</h2>{_bars(report.sources)}
<h2>How often they were claimed</h2>{_bars(report.claims)}
<h2>The most frequent patterns</h2>{_table(report)}
<h2>Samples</h2>{_samples(report)}
</body></html>
"""


def _bars(points: Sequence[tuple[str, int]]) -> str:
    """Draw a bar for each label."""
    if not points:
        return "<p>None.</p>"
    most = max(count for _, count in points)
    parts = [
        f'<text x="0" y="{24 * index + 16}" font-size="13">{escape(label[:40])}</text>'
        f'<rect x="300" y="{24 * index + 4}" width="{max(1.0, 500 * count / most):.1f}" '
        f'height="16" fill="#4269d0"/><text x="{310 + 500 * count / most:.1f}" '
        f'y="{24 * index + 16}" font-size="12">{count:,}</text>'
        for index, (label, count) in enumerate(points)
    ]
    return f'<svg viewBox="0 0 900 {24 * len(points) + 4}" role="img">{"".join(parts)}</svg>'


def _table(report: Report) -> str:
    rows = "".join(
        f'<tr><td class="n">{row["letters"]:,}</td>'
        f'<td class="n">{100 * row["letters"] / max(1, report.letters):.1f} %</td>'
        f"<td><code>{escape(row['signature'])}</code></td><td><code>{escape(row['shape'])}</code>"
        f"</td><td>{escape(row['source'] or '(none)')}</td>"
        f"<td>{row['claims_min']} / {row['claims_median']} / {row['claims_max']}</td>"
        f"<td>{_time(row['first_seen'])}</td><td>{_time(row['last_seen'])}</td></tr>"
        for row in report.top
    )
    return (
        "<table><tr><th>Letters<th>Share<th>Error signature<th>Body shape<th>Source"
        "<th>Claims: least / median / most<th>First<th>Last</tr>"
        f"{rows}</table>"
    )


def _samples(report: Report) -> str:
    if not report.samples:
        return "<p>None were asked for.</p>"
    rows = "".join(
        f"<tr><td><code>{escape(signature)}</code></td><td><code>{escape(message_id)}</code></td>"
        f"<td><pre>{escape(body or '')}</pre></td></tr>"
        for signature, _, _, message_id, body in report.samples
    )
    return f"<table><tr><th>Error signature<th>Id<th>Body</tr>{rows}</table>"


def _time(value: dt.datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if value else "?"
