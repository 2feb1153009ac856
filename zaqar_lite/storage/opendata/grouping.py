"""Groups: which messages of a queue are in one.

Each has an empty record of its own, whose key ends in its position; it is written and deleted in
the batches in which the message comes and goes. So a group is a range of keys, and takes no memory.
"""

import asyncio
from functools import partial

from zaqar_lite.domain.models import Message, Page, QueueRef, Selection
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.encoding import after_prefix
from zaqar_lite.storage.opendata.paging import cold_at_positions, prepared
from zaqar_lite.storage.opendata.reading import is_wanted, read, resolve
from zaqar_lite.storage.opendata.state import State

_STEP = 50
"""Messages that one step looks for: each may lie in another page, which is loaded whole."""


async def list_group(db: State, ref: QueueRef, selection: Selection, group: str) -> Page:
    """List messages of a group; see the seam."""
    messages: list[Message] = []
    page = Page(messages, None)
    queue = db.queue(ref, selection.version)
    if queue is None:
        return page
    after, last = resolve(db, selection.marker, queue), resolve(db, selection.until, queue)
    bare = selection.bare and selection.exclude_client_id is None
    while True:
        start = keys.group_key(queue.raw, group, 0 if after is None else after + 1)
        members = keys.group_key(queue.raw, group)
        end = after_prefix(members) if last is None else keys.group_key(queue.raw, group, last + 1)
        positions = await _positions(db, start, end, min(_STEP, selection.limit - len(messages)))
        current, now = await prepared(
            db, ref, selection.version, partial(cold_at_positions, positions=positions), reads=True
        )
        if current is None or not positions:
            return page
        queue, found = current, []
        for position in positions:
            entry = queue.find(position)
            if entry is not None and _is_in(entry, group) and is_wanted(selection, entry, now):
                found.append(entry)
        queue.examined += len(positions)
        page.marker = after = positions[-1]
        unwanted = selection.exclude_client_id
        messages += [
            one
            for one in await read(db, queue, found, now, details=selection.details, bare=bare)
            if unwanted is None or one.client_id != unwanted
        ]
        if len(messages) == selection.limit:
            return page
        await asyncio.sleep(0)


def _is_in(entry: Entry, group: str) -> bool:
    return entry.extras is not None and entry.extras.group == group


async def _positions(db: State, start: bytes, end: bytes, limit: int) -> list[int]:
    """The first positions in a range of a group's keys."""
    found: list[int] = []
    if start < end:
        async for chunk in db.engine.scan(start, end):
            found += [int.from_bytes(key[-8:], "big") for key, _ in chunk]
            if len(found) >= limit:
                break
    return found[:limit]
