"""The screens of more than one queue: all queues, schedules and pools."""

import asyncio
import time
from typing import Any

from starlette.requests import Request

from zaqar_lite.searching import Search, by_trouble, search
from zaqar_lite.ui.calls import Caller, Refused, quoted, refused
from zaqar_lite.ui.queue_screens import counts_of, next_of

_PAGE, _MOST_QUEUES, _LONGEST_LOOK = 20, 200, 0.08
"""Queues that the API lists at once; of how many, and for how many seconds, a look asks at most."""
Values = dict[str, Any]


async def queues(caller: Caller, request: Request) -> Values:
    """The project's queues with their counts, those in trouble first, that a search finds.

    A look asks about as many as fit into 80 ms; the next page goes on from there.
    """
    try:
        wanted = search(request.query_params.get("q", ""))
    except ValueError as error:
        raise refused("The search is not understood", f"{error}.") from None
    rows: list[Values] = []
    marker, looked_at, begun = request.query_params.get("marker"), 0, time.monotonic()
    while True:
        query = {
            "limit": _PAGE,
            "marker": marker,
            "name": wanted.names[0] if wanted.names else None,
            "detailed": "true",
        }
        document = await caller.get("/v2/queues", query)
        listed = document["queues"]
        rows += await _rows(caller, listed, wanted)
        looked_at += len(listed)
        marker = next_of(document) if len(listed) == _PAGE else None
        if marker is None or looked_at >= _MOST_QUEUES or time.monotonic() - begun > _LONGEST_LOOK:
            break
    rows.sort(key=lambda row: (*by_trouble(row), row["queue"]))
    return {"queues": rows, "looked_at": looked_at, "next": marker}


async def _rows(caller: Caller, listed: list[Values], wanted: Search) -> list[Values]:
    """The counts of the queues that match the search, with their dead letters."""
    named = [one for one in listed if wanted.names_it(one["name"])]
    targets = {one["metadata"].get("_dead_letter_queue") for one in named} - {None}
    asked = [one["name"] for one in named]
    found = await asyncio.gather(*(counts_of(caller, name) for name in asked))
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
    try:
        return int((await counts_of(caller, name))["total"])
    except Refused:
        return None


async def schedules(caller: Caller, request: Request) -> Values:
    """The project's schedules, with when they fire and what became of it."""
    query = {"limit": _PAGE, "marker": request.query_params.get("marker")}
    document = await caller.get("/v2/schedules", query)
    found = document["schedules"]
    return {"schedules": found, "next": next_of(document) if len(found) == _PAGE else None}


async def pools(caller: Caller, request: Request) -> Values:
    """The server's pools, and how far those that are emptied are."""
    query = {"limit": _PAGE, "marker": request.query_params.get("marker")}
    document = await caller.get("/v2/pools", query)
    found = document["pools"]
    drains = await asyncio.gather(  # None of a pool that was never drained
        *(caller.find(f"/v2/pools/{quoted(one['name'])}/drain") for one in found)
    )
    return {
        "pools": [{**one, "drain": drain} for one, drain in zip(found, drains, strict=True)],
        "next": next_of(document) if len(found) == _PAGE else None,
    }
