"""The Grafana dashboard, from the list of its panels.

python -m tests.generate_dashboard      writes api-ref/source/operating/dashboard.json
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "api-ref/source/operating/dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_COLUMNS, _HEIGHT = 3, 7
_RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """A graph: its title, its unit, and what it draws, as pairs of legend and expression."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


def _rate(name: str, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(zaqar_lite_{name}{_RATE}))"


def _quantile(share: float, name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate(zaqar_lite_{name}_bucket{_RATE})))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Queues": (
        Panel(
            "Oldest ready message",
            "s",
            (("{{store}}", "max by (store) (zaqar_lite_oldest_ready_message_age_seconds)"),),
        ),
        Panel(
            "Messages by state",
            "short",
            tuple(
                (state, f"max by (store) (zaqar_lite_{state}_messages)")
                for state in ("ready", "delayed", "claimed")
            ),
        ),
        Panel(
            "Queues with the oldest messages",
            "s",
            (
                (
                    "{{project}} {{queue}}",
                    "topk(10, max by (project, queue) "
                    "(zaqar_lite_queue_oldest_ready_message_age_seconds))",
                ),
            ),
        ),
        Panel(
            "Messages in, out and failed",
            "cps",
            tuple(
                (name.replace("_", " "), _rate(f"{name}_messages_total"))
                for name in ("posted", "handed_out", "deleted", "popped", "failed", "expired")
            ),
        ),
        Panel(
            "Dead letters made",
            "cps",
            (("{{reason}}", _rate("dead_lettered_messages_total", "reason")),),
        ),
        Panel(
            "Dead letters waiting",
            "short",
            (
                (
                    "{{project}} {{queue}}",
                    "topk(10, max by (project, queue) (zaqar_lite_dead_letters))",
                ),
            ),
        ),
        Panel(
            "From due to hand-out",
            "s",
            tuple(
                (f"p{share}", _quantile(share / 100, "delay_lateness_seconds"))
                for share in (50, 99)
            ),
        ),
        Panel(
            "From ready to hand-out",
            "s",
            tuple((f"p{share}", _quantile(share / 100, "pickup_seconds")) for share in (50, 99)),
        ),
        Panel(
            "Deliveries to subscribers",
            "cps",
            (("{{outcome}}", _rate("deliveries_total", "outcome")),),
        ),
    ),
    "Server": (
        Panel(
            "Requests by status",
            "reqps",
            (("{{status}}", _rate("http_requests_total", "status")),),
        ),
        Panel(
            "Request time by route (p99)",
            "s",
            (("{{route}}", _quantile(0.99, "http_request_seconds", "route")),),
        ),
        Panel(
            "Waiting requests and connections",
            "short",
            (
                ("waiting", "sum (zaqar_lite_waiting_requests)"),
                ("connections", "sum (zaqar_lite_connections)"),
                ("websockets", "sum (zaqar_lite_websockets)"),
            ),
        ),
        Panel(
            "Store time by operation (p99)",
            "s",
            (("{{operation}}", _quantile(0.99, "store_operation_seconds", "operation")),),
        ),
        Panel(
            "Store errors",
            "cps",
            (("{{operation}}", _rate("store_errors_total", "operation")),),
        ),
        Panel(
            "Sweep",
            "s",
            (
                ("debt", "max (zaqar_lite_sweep_debt_seconds)"),
                ("busy a second", _rate("sweep_seconds_total")),
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The whole dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, graphs in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, y, 24, 1), "panels": []})
        y += 1
        for index, graph in enumerate(graphs):
            width = 24 // _COLUMNS
            x, row = width * (index % _COLUMNS), index // _COLUMNS
            panels.append(_graph(graph, _place(x, y + row * _HEIGHT, width, _HEIGHT)))
        y += -(-len(graphs) // _COLUMNS) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "Zaqar Lite",
        "uid": "zaqar-lite",
        "tags": ["zaqar-lite"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _graph(graph: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": graph.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": graph.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + index), "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(graph.lines)
        ],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
