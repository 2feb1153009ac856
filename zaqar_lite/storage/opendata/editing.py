"""Changing a message while it is delayed."""

from zaqar_lite.domain.errors import Conflict, Invalid, NotFound
from zaqar_lite.domain.models import Edit, Message, QueueRef
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.listing import cold_named, named
from zaqar_lite.storage.opendata.paging import prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import bodies_in_memory, read_bodies
from zaqar_lite.storage.opendata.state import State


async def edit(db: State, queue: QueueRef, wanted: Edit) -> Message:
    """Change a delayed message; see the seam."""
    message_id, body, ttl_ms, delay_ms = (
        wanted.message_id, wanted.body, wanted.ttl_ms, wanted.delay_ms,
    )  # fmt: skip
    there, entry, now, shown = await _editable(db, queue, message_id, wanted.version)
    if body is not None and db.holders(entry) > 1:
        raise Conflict(
            f"The body of message {message_id} can't be changed: other queues hold it too."
        )
    visible_at = entry.visible_at if delay_ms is None else now + delay_ms
    expires_at = entry.expires_at if ttl_ms is None else now + ttl_ms
    if expires_at < visible_at:
        raise Invalid(
            f"Message {message_id} would expire {visible_at - expires_at} ms before its "
            "delay is over: give a longer ttl or a shorter delay."
        )
    if body is not None:
        shown = body
        db.store(entry.id, (body,))
    if ttl_ms is not None:
        there.set_ttl(entry, ttl_ms, now)
    if delay_ms is not None:
        there.set_delay(entry, visible_at)
        there.wake(entry.page, now, len(entry.page.entries))
        db.announce(queue, int(visible_at <= now))
    message = entry.view(db.names.write(entry.name), now)
    message.body = shown
    db.changed(there)
    await db.committer.durable()
    return message


async def _editable(
    db: State, queue: QueueRef, message_id: str, version: int | None
) -> tuple[Queue, Entry, int, bytes]:
    """The queue, the delayed message, the instant and the body, to be used before the next await.

    The body is read before anything is changed, so that the answer can't fail afterwards.
    """
    read: tuple[Entry, bytes] | None = None
    while True:
        there, now = await prepared(db, queue, version, cold_named(db, (message_id,)))
        found = () if there is None else named(db, there, (message_id,), now)
        if there is None or not found:
            raise NotFound(f"Message {message_id} does not exist.")
        (entry,) = found
        if not entry.delayed or entry.visible_at <= now:
            raise Conflict(f"Message {message_id} is not delayed (any more).")
        bodies = bodies_in_memory(db, found)
        if bodies is not None:
            return there, entry, now, bodies[0]
        if read is not None and read[0] is entry:
            return there, entry, now, read[1]
        body = (await read_bodies(db, there, found)).get(entry.position)
        if body is None:
            raise NotFound(f"Message {message_id} does not exist.")
        read = entry, body
