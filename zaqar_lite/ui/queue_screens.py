"""What each screen of a queue shows: the values of its template, asked of the API."""

import asyncio
from collections import Counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from zaqar_lite.ui import formats
from zaqar_lite.ui.calls import Caller, job_path, message_path, queue_path, quoted
from zaqar_lite.ui.settings import FIELDS

_PAGE, _MOST_EXAMINED = 20, 100
_STATES = {
    "all": {"include_claimed": "true", "include_delayed": "true"},
    "ready": {"include_claimed": "false", "include_delayed": "false"},
}
_FILTERED = {"delayed": ("delayed", formats.WAITS_AGAIN), "claimed": ("claimed",)}
"""States that no list asks for: they are picked from the first messages."""
Values = dict[str, Any]


async def queue(caller: Caller, request: Request) -> Values:
    """A queue: its counts, settings and messages."""
    path = queue_path(request)
    state = request.query_params.get("state", "all")
    query = {
        "limit": _PAGE,
        "marker": request.query_params.get("marker"),
        "echo": "true",
        "details": "true",
        **_STATES.get(state, _STATES["all"]),
    }
    counts, settings, listed = await asyncio.gather(
        counts_of(caller, request.path_params["queue"]),
        caller.get(path),
        caller.get(f"{path}/messages", query),
    )
    messages, next_ = listed["messages"], None
    if len(messages) == _PAGE and state not in _FILTERED:
        next_ = next_of(listed)
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
        "next": next_,
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
    query = {"limit": _PAGE, "echo": "true", "details": "true", "include_claimed": "true"}
    if delayed:
        query["include_delayed"] = "true"
    found: list[Values] = []
    marker: str | None = None
    while len(found) < _MOST_EXAMINED:
        listed = await caller.get(path, {**query, "marker": marker})
        page = listed["messages"]
        found += page
        marker = next_of(listed)
        if not page or marker is None:
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
            {"id": one, "ids": ids, **_times(claim)}
            for (one, ids), claim in zip(held.items(), found, strict=True)
        ],
        "looked_at": len(messages),
    }


def _times(claim: Values | None) -> Values:
    """How long a claim has lasted and still lasts; None if it is over, or if not allowed to see."""
    if claim is None:
        return {"age": None, "left": None}
    return {"age": claim["age"], "left": max(0, claim["ttl"] - claim["age"])}


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
    counts = await counts_of(caller, request.path_params["queue"])
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


async def counts_of(caller: Caller, name: str) -> Values:
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


def next_of(document: Values) -> str | None:
    """The marker of the next page."""
    for link in document.get("links", ()):
        if link["rel"] == "next":
            markers = parse_qs(urlsplit(str(link["href"])).query).get("marker")
            return markers[0] if markers else None
    return None
