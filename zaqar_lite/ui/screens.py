"""What each screen shows: the values of its template, asked of the API."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from zaqar_lite.searching import Search, by_trouble, search
from zaqar_lite.ui import formats
from zaqar_lite.ui.calls import Caller, Refused, job_path, message_path, queue_path, quoted
from zaqar_lite.ui.settings import FIELDS

_PAGE, _MOST_EXAMINED = 20, 100
"""Entries that the API lists at once, and how many messages a screen picks from."""
_MOST_QUEUES, _LONGEST_LOOK = 200, 0.08
"""How many queues, and for how many seconds, a look at all queues asks about at most."""
_STATES = {
    "all": {"include_claimed": "true", "include_delayed": "true"},
    "ready": {"include_claimed": "false", "include_delayed": "false"},
}
_LISTED = {"echo": "true", "details": "true"}
_FILTERED = {"delayed": ("delayed", formats.WAITS_AGAIN), "claimed": ("claimed",)}
"""States that no list asks for: they are picked from the first messages."""
_LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIX = "zaqar_lite_"
Samples = Mapping[str, list[tuple[dict[str, str], float]]]
Values = dict[str, Any]


async def queues(caller: Caller, request: Request) -> Values:
    """The project's queues with their counts, those in trouble first, that a search finds.

    A look asks about as many as fit into 80 ms; the next page goes on from there.
    """
    try:
        wanted = search(request.query_params.get("q", ""))
    except ValueError as error:
        raise Refused("The search is not understood", f"{error}.") from None
    rows: list[Values] = []
    marker, looked_at, begun = request.query_params.get("marker"), 0, time.monotonic()
    while True:
        name = wanted.names[0] if wanted.names else None
        query = {"marker": marker, "name": name, "detailed": "true"}
        listed, marker = await _page(caller, "/v2/queues", "queues", query)
        rows += await _rows(caller, listed, wanted)
        looked_at += len(listed)
        if marker is None or looked_at >= _MOST_QUEUES or time.monotonic() - begun > _LONGEST_LOOK:
            break
    rows.sort(key=lambda row: (*by_trouble(row), row["queue"]))
    return {"queues": rows, "looked_at": looked_at, "next": marker}


async def _rows(caller: Caller, listed: list[Values], wanted: Search) -> list[Values]:
    """The counts of the queues that match the search, with their dead letters."""
    named = [one for one in listed if wanted.names_it(one["name"])]
    targets = {one["metadata"].get("_dead_letter_queue") for one in named} - {None}
    asked = [one["name"] for one in named]
    found = await asyncio.gather(*(_counts(caller, name) for name in asked))
    dead = dict(
        zip(targets, await asyncio.gather(*(_total(caller, one) for one in targets)), strict=True)
    )
    rows = [
        {
            "queue": one["name"],
            **counts,
            "dead": dead.get(one["metadata"].get("_dead_letter_queue")),
        }
        for one, counts in zip(named, found, strict=True)
    ]
    return [row for row in rows if wanted.finds(row)]


async def _total(caller: Caller, name: str) -> int | None:
    """How many messages a queue holds; None if the user may not see that."""
    stats = await caller.find(f"/v2/queues/{quoted(name)}/stats")
    return None if stats is None else int(stats["messages"]["total"])


async def schedules(caller: Caller, request: Request) -> Values:
    """The project's schedules, with when they fire and what became of it."""
    found, marker = await _page(caller, "/v2/schedules", "schedules", _marked(request))
    return {"schedules": found, "next": marker}


async def pools(caller: Caller, request: Request) -> Values:
    """The server's pools, and how far those that are emptied are."""
    found, marker = await _page(caller, "/v2/pools", "pools", _marked(request))
    drains = await asyncio.gather(  # None of a pool that was never drained
        *(caller.find(f"/v2/pools/{quoted(one['name'])}/drain") for one in found)
    )
    return {
        "pools": [{**one, "drain": drain} for one, drain in zip(found, drains, strict=True)],
        "next": marker,
    }


async def queue(caller: Caller, request: Request) -> Values:
    """A queue: its counts, settings and messages."""
    path = queue_path(request)
    state = request.query_params.get("state", "all")
    query = {**_marked(request), **_LISTED, **_STATES.get(state, _STATES["all"])}
    counts, settings, (messages, marker) = await asyncio.gather(
        _counts(caller, request.path_params["queue"]),
        caller.get(path),
        _page(caller, f"{path}/messages", "messages", query, full=1),
    )
    if marker is not None and len(messages) < _PAGE:  # large ones end a page early
        behind = {**query, "marker": marker, "limit": 1}
        if not (await _page(caller, f"{path}/messages", "messages", behind))[0]:
            marker = None
    delayed: list[Values] = []
    if counts["delayed"] or state == "delayed":
        delayed = await _first_messages(caller, f"{path}/messages", delayed=True)
    if state in _FILTERED:
        first = delayed
        if state != "delayed":
            first = await _first_messages(caller, f"{path}/messages")
        messages = [one for one in first if formats.state(one) in _FILTERED[state]]
    return {
        "counts": counts,
        "settings": settings,
        "fields": FIELDS,
        "messages": messages,
        "state": state,
        "due": formats.timeline([formats.waits(one) for one in delayed if formats.waits(one) > 0]),
        "looked_at": len(delayed),
        "next": None if state in _FILTERED else marker,
        "most": _MOST_EXAMINED,
    }


async def message(caller: Caller, request: Request) -> Values:
    """A message with its attempts."""
    return {"message": await caller.get(message_path(request), {"details": "true"})}


async def dead_letters(caller: Caller, request: Request) -> Values:
    """A queue's letters, counted by reason and source, with what a redrive would move."""
    path, reason = queue_path(request), request.query_params.get("reason") or None
    messages = await _first_messages(caller, f"{path}/messages")
    letters = [one for one in messages if one["dead_letter"]]
    groups = Counter(
        (one["dead_letter"]["reason"], _last_reason(one), one["dead_letter"]["source"])
        for one in letters
    )
    if reason is not None:
        letters = [one for one in letters if one["dead_letter"]["reason"] == reason]
    jobs, settings = await asyncio.gather(caller.get(f"{path}/redrives"), caller.get(path))
    free = sum("claim_id=" not in one["href"] for one in letters)
    return {
        "touched": f"at least {free}" if len(messages) >= _MOST_EXAMINED else str(free),
        "groups": groups.most_common(),
        "letters": letters[:_PAGE],
        "looked_at": len(messages),
        "reason": reason,
        "jobs": jobs["jobs"],
        "target": settings.get("_dead_letter_queue"),
    }


def _last_reason(letter: Values) -> str:
    """Why the letter's last attempt ended, as its consumer said."""
    attempts = letter["attempts"]
    return str(attempts[-1]["reason"] or attempts[-1]["outcome"]) if attempts else ""


async def _first_messages(caller: Caller, path: str, *, delayed: bool = False) -> list[Values]:
    """The first messages of a queue, read page by page."""
    query = {**_LISTED, "include_claimed": "true", "include_delayed": str(delayed).lower()}
    found: list[Values] = []
    marker: str | None = None
    while len(found) < _MOST_EXAMINED:
        asked = {**query, "marker": marker}
        listed, marker = await _page(caller, path, "messages", asked, full=1)
        found += listed
        if marker is None:
            break
    return found


async def claims(caller: Caller, request: Request) -> Values:
    """Who holds messages of the queue: its claims, as far as its first messages tell."""
    path = queue_path(request)
    messages = await _first_messages(caller, f"{path}/messages")
    held: dict[str, list[str]] = {}
    for one in messages:
        _, is_held, claim_id = one["href"].partition("?claim_id=")
        if is_held:
            held.setdefault(claim_id, []).append(one["id"])
    found = await asyncio.gather(*(caller.find(f"{path}/claims/{one}") for one in held))
    return {
        "claims": [
            {
                "id": one,
                "ids": ids,
                "age": claim and claim["age"],  # None of one that is over, or may not be seen
                "left": claim and max(0, claim["ttl"] - claim["age"]),
            }
            for (one, ids), claim in zip(held.items(), found, strict=True)
        ],
        "looked_at": len(messages),
    }


async def jobs(caller: Caller, request: Request) -> Values:
    """The queue's jobs of each kind, the newest first."""
    path = queue_path(request)
    kinds = ("redrives", "delayed/cancel", "delayed/move", "delayed/fire")
    lists = await asyncio.gather(*(caller.get(f"{path}/{kind}") for kind in kinds))
    found = [
        {**one, "kind": kind}
        for kind, listed in zip(kinds, lists, strict=True)
        for one in listed["jobs"]
    ]
    found.sort(key=lambda one: (one["created"], one["id"]), reverse=True)
    counts = await _counts(caller, request.path_params["queue"])
    return {"jobs": found, "delayed": counts["delayed"]}


async def job(caller: Caller, request: Request) -> Values:
    """A job and how far it is."""
    return {"job": await caller.get(job_path(request))}


async def subscriptions(caller: Caller, request: Request) -> Values:
    """Who is sent the queue's messages, and the last attempts to do so."""
    path = f"{queue_path(request)}/subscriptions"
    listed = (await caller.get(path, {"limit": _PAGE}))["subscriptions"]
    logs = await asyncio.gather(*(caller.get(f"{path}/{one['id']}/deliveries") for one in listed))
    return {
        "subscriptions": [
            {**one, "deliveries": log["deliveries"][:10]}
            for one, log in zip(listed, logs, strict=True)
        ]
    }


async def _counts(caller: Caller, name: str) -> Values:
    """How many messages a queue holds by state, and the age of the oldest."""
    query = {"details": "true", "recent": "true"}
    stats = await caller.get(f"/v2/queues/{quoted(name)}/stats", query)
    found = stats["messages"]
    oldest = found.get("oldest") or {}
    delayed = found.get("delayed", 0)
    return {
        "ready": found["free"] - delayed,
        "delayed": delayed,
        "claimed": found["claimed"],
        "total": found["total"],
        "oldest_age": oldest.get("age", 0),
        "recent": stats["recent"],
        "rates": stats.get("rates"),
    }


def _marked(request: Request) -> Values:
    """Where the page that is looked at begins."""
    return {"marker": request.query_params.get("marker")}


async def _page(
    caller: Caller, path: str, kind: str, query: Values, *, full: int = _PAGE
) -> tuple[list[Values], str | None]:
    """A page of a list, and the marker of the next one; none behind one of less than `full`."""
    document = await caller.get(path, {"limit": _PAGE, **query})
    found: list[Values] = document[kind]
    for link in document["links"] if len(found) >= full else ():
        if link["rel"] == "next":
            markers = parse_qs(urlsplit(str(link["href"])).query).get("marker")
            return found, markers[0] if markers else None
    return found, None


async def server(caller: Caller, _: Request) -> Values:
    """The server: its store, how fast it answers, what the sweep owes, how late messages are."""
    samples = _read(await caller.get("/metrics"))
    operations = sorted({one["operation"] for one, _ in samples["store_operation_seconds_count"]})
    times = [
        ("Requests", _timed(samples, "http_request_seconds")),
        ("First hand-out after a message is ready", _timed(samples, "pickup_seconds")),
        ("Delayed messages, after they were due", _timed(samples, "delay_lateness_seconds")),
    ]
    times += [
        (f"Store: {name}", _timed(samples, "store_operation_seconds", operation=name))
        for name in operations
    ]
    return {
        "pools": await caller.find("/v2/pools", {"limit": 1}) is not None,
        "info": samples["build_info"][0][0],
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


def _read(text: str) -> Samples:
    """Return the samples of a page of metrics by their names, with their labels."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        sample = _LINE.fullmatch(line)
        if sample is not None:
            labels = dict(_LABEL.findall(sample[2] or ""))
            found.setdefault(sample[1].removeprefix(_PREFIX), []).append((labels, float(sample[3])))
    return found


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


def _timed(samples: Samples, name: str, **wanted: str) -> Values | None:
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
