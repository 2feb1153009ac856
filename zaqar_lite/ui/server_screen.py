"""The screen of the server: what its metrics say, read from their text."""

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from zaqar_lite.ui.calls import Caller

_LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIX = "zaqar_lite_"
Samples = Mapping[str, list[tuple[dict[str, str], float]]]
Values = dict[str, Any]


async def server(caller: Caller, _: Request) -> Values:
    """The server: its store, how fast it answers, what the sweep owes, how late messages are."""
    return {
        **summary(read(await caller.get("/metrics"))),
        "pools": await caller.find("/v2/pools", {"limit": 1}) is not None,
    }


def read(text: str) -> Samples:
    """Return the samples of a page of metrics by their names, with their labels."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        sample = _LINE.fullmatch(line)
        if sample is not None:
            labels = dict(_LABEL.findall(sample[2] or ""))
            found.setdefault(sample[1].removeprefix(_PREFIX), []).append((labels, float(sample[3])))
    return found


def summary(samples: Samples) -> Values:
    """Return what the screen shows: facts, what happened to messages, and times."""
    info = samples["build_info"][0][0]
    operations = sorted({one["operation"] for one, _ in samples["store_operation_seconds_count"]})
    times = [
        ("Requests", _times(samples, "http_request_seconds")),
        ("First hand-out after a message is ready", _times(samples, "pickup_seconds")),
        ("Delayed messages, after they were due", _times(samples, "delay_lateness_seconds")),
    ]
    times += [
        (f"Store: {name}", _times(samples, "store_operation_seconds", operation=name))
        for name in operations
    ]
    return {
        "info": info,
        "facts": {name: _sum(samples, key) for name, key in _FACTS.items() if key in samples},
        "seconds": {name: _sum(samples, key) for name, key in _SECONDS.items() if key in samples},
        "happened": {
            name.removesuffix("_messages_total").replace("_", " "): _sum(samples, name)
            for name in sorted(samples)
            if name.endswith("_messages_total") and _sum(samples, name)
        },
        "errors": [
            (one["operation"], count) for one, count in samples["store_errors_total"] if count
        ],
        "times": [(name, found) for name, found in times if found is not None],
    }


_FACTS = {
    "Ready messages": "ready_messages",
    "Delayed messages": "delayed_messages",
    "Claimed messages": "claimed_messages",
    "Queues with messages": "counted_queues",
    "Subscriptions": "subscriptions",
    "Deliveries to make": "pending_deliveries",
    "Requests that wait": "waiting_requests",
    "Connections": "connections",
    "WebSockets": "websockets",
    "MiB of memory": "process_resident_memory_bytes",
}
_SECONDS = {
    "Oldest ready message": "oldest_ready_message_age_seconds",
    "Sweep debt": "sweep_debt_seconds",
    "Age of these counts": "count_age_seconds",
}


def _sum(samples: Samples, name: str) -> float:
    total = sum(value for _, value in samples.get(name, ()))
    return total / 1_048_576 if name.endswith("_bytes") else total


def _times(samples: Samples, name: str, **wanted: str) -> Values | None:
    """How often something was timed, its mean, and the bounds of its median and 99th percentile.

    None if it was never timed. A bound of None means: above the last bound of the histogram.
    """
    buckets: dict[float, float] = {}
    for labels, value in samples.get(f"{name}_bucket", ()):
        if wanted.items() <= labels.items():
            bound = float(labels["le"].replace("+Inf", "inf"))
            buckets[bound] = buckets.get(bound, 0) + value
    count = buckets.get(float("inf"), 0)
    if not count:
        return None
    total = sum(
        value for labels, value in samples[f"{name}_sum"] if wanted.items() <= labels.items()
    )
    return {
        "count": count,
        "mean": total / count,
        **{f"p{share}": _bound(buckets, count * share / 100) for share in (50, 99)},
    }


def _bound(buckets: Mapping[float, float], rank: float) -> float | None:
    bound = next(one for one in sorted(buckets) if buckets[one] >= rank)
    return None if bound == float("inf") else bound
