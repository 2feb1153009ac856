"""What each screen shows: the values of its template, asked of the API."""

import asyncio
from collections import Counter
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request

from zaqar_lite.ui import shown
from zaqar_lite.ui.calls import Caller

_QUEUES, _MESSAGES, _LETTERS = 20, 20, 100
_STATES = {
    "all": {"include_claimed": "true", "include_delayed": "true"},
    "ready": {"include_claimed": "false", "include_delayed": "false"},
}
Values = dict[str, Any]


async def queues(caller: Caller, request: Request) -> Values:
    """The project's queues with their counts, those in trouble first on each page."""
    wanted = request.query_params.get("q") or None
    query = {"limit": _QUEUES, "marker": request.query_params.get("marker"), "name": wanted}
    answer = await caller.call("GET", "/v2/queues", query)
    names = [one["name"] for one in answer.document["queues"]]
    counts = await asyncio.gather(*(_counts(caller, name) for name in names))
    rows = [{"name": name, **count} for name, count in zip(names, counts, strict=True)]
    rows.sort(key=lambda row: (-row["oldest_age"], row["name"]))
    return {"queues": rows, "next": _next(answer.document) if names else None}


async def queue(caller: Caller, request: Request) -> Values:
    """A queue: its counts, settings and messages."""
    path = _queue(request)
    state = request.query_params.get("state", "all")
    query = {
        "limit": _MESSAGES,
        "marker": request.query_params.get("marker"),
        "echo": "true",
        "details": "true",
        **_STATES.get(state, _STATES["all"]),
    }
    counts, settings, listed = await asyncio.gather(
        _counts(caller, request.path_params["queue"]),
        caller.call("GET", path),
        caller.call("GET", f"{path}/messages", query),
    )
    messages = listed.document["messages"]
    due = Counter(_slot(shown.waits(one)) for one in messages if shown.waits(one) > 0)
    return {
        "counts": counts,
        "settings": settings.document,
        "messages": messages,
        "state": state,
        "due": [(name, due[name]) for name in _SLOTS if due[name]],
        "next": _next(listed.document) if len(messages) == _MESSAGES else None,
    }


async def message(caller: Caller, request: Request) -> Values:
    """A message with its attempts."""
    answer = await caller.call("GET", _message(request), {"details": "true"})
    return {"message": answer.document}


async def dead_letters(caller: Caller, request: Request) -> Values:
    """A queue's letters, counted by reason and source, with what a redrive would move."""
    path, reason = _queue(request), request.query_params.get("reason") or None
    messages = await _first(caller, f"{path}/messages")
    letters = [one for one in messages if one["dead_letter"]]
    groups = Counter(
        (one["dead_letter"]["reason"], _last_reason(one), one["dead_letter"]["source"])
        for one in letters
    )
    if reason is not None:
        letters = [one for one in letters if one["dead_letter"]["reason"] == reason]
    jobs = await caller.call("GET", f"{path}/redrives")
    return {
        "groups": groups.most_common(),
        "letters": letters[:_MESSAGES],
        "looked_at": len(messages),
        "reason": reason,
        "jobs": jobs.document["jobs"],
    }


def _last_reason(letter: Values) -> str:
    """Why the letter's last attempt ended, as its consumer said."""
    attempts = letter["attempts"]
    return str(attempts[-1]["reason"] or attempts[-1]["outcome"]) if attempts else ""


async def _first(caller: Caller, path: str) -> list[Values]:
    """The first messages of a queue, read page by page."""
    query = {"limit": _MESSAGES, "echo": "true", "details": "true", "include_claimed": "true"}
    found: list[Values] = []
    marker: str | None = None
    while len(found) < _LETTERS:
        listed = await caller.call("GET", path, {**query, "marker": marker})
        page = listed.document["messages"]
        found += page
        marker = _next(listed.document)
        if not page or marker is None:
            break
    return found


async def job(caller: Caller, request: Request) -> Values:
    """A redrive and how far it is."""
    answer = await caller.call("GET", f"{_queue(request)}/redrives/{_part(request, 'job')}")
    return {"job": answer.document}


async def subscriptions(caller: Caller, request: Request) -> Values:
    """Who is sent the queue's messages, and the last attempts to do so."""
    path = f"{_queue(request)}/subscriptions"
    listed = (await caller.call("GET", path, {"limit": _MESSAGES})).document["subscriptions"]
    logs = await asyncio.gather(
        *(caller.call("GET", f"{path}/{one['id']}/deliveries") for one in listed)
    )
    return {
        "subscriptions": [
            {**one, "deliveries": log.document["deliveries"][:10]}
            for one, log in zip(listed, logs, strict=True)
        ]
    }


_SLOTS = ("in a minute", "in an hour", "in a day", "later")


def _slot(seconds: float) -> str:
    limits = (60, 3_600, 86_400)
    return next(
        (name for name, limit in zip(_SLOTS, limits, strict=False) if seconds <= limit), _SLOTS[-1]
    )


async def _counts(caller: Caller, name: str) -> Values:
    answer = await caller.call(
        "GET", f"/v2/queues/{quote(name, safe='')}/stats", {"details": "true"}
    )
    found = answer.document["messages"]
    oldest = found.get("oldest") or {}
    delayed = found.get("delayed", 0)
    return {
        "ready": found["free"] - delayed,
        "delayed": delayed,
        "claimed": found["claimed"],
        "total": found["total"],
        "oldest_age": oldest.get("age", 0),
    }


def _next(document: Values) -> str | None:
    """The marker of the next page."""
    for link in document.get("links", ()):
        if link["rel"] == "next":
            markers = parse_qs(urlsplit(str(link["href"])).query).get("marker")
            return markers[0] if markers else None
    return None


def _part(request: Request, name: str) -> str:
    return quote(request.path_params[name], safe="")


def _queue(request: Request) -> str:
    return f"/v2/queues/{_part(request, 'queue')}"


def _message(request: Request) -> str:
    return f"{_queue(request)}/messages/{_part(request, 'message')}"
