"""Reading messages: by id and in lists, with their bodies, metadata and attempts.

Bodies and metadata come from memory where they are known, else from their records.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, takewhile

from zaqar_lite.domain.attempts import Attempt
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import ListQuery, Message, Page, QueueRef
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata.engine import Stored, readable
from zaqar_lite.storage.opendata.entries import UNKNOWN, Entry, is_damaged
from zaqar_lite.storage.opendata.entries import Page as QueuePage
from zaqar_lite.storage.opendata.format import CodecError, after_prefix, keys, records
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX
from zaqar_lite.storage.opendata.paging import (
    cold_after,
    cold_at_positions,
    cold_of_shown_ids,
    prepared,
)
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)


async def fill(db: State, queue: Queue, entries: Sequence[Entry], messages: list[Message]) -> None:
    """Give messages the bodies of their entries, and the metadata that is only in the log.

    Messages that were deleted meanwhile or can't be read are removed from the list.
    """
    bodies = bodies_in_memory(db, entries)
    if bodies is not None:
        for message, body in zip(messages, bodies, strict=True):
            message.body = body
        return
    found = await read_bodies(db, queue, entries)
    kept: list[Message] = []
    for entry, message in zip(entries, messages, strict=True):
        if entry.position not in found:
            continue
        message.body = found[entry.position]
        message.created_at, message.client_id = entry.created_at, entry.client_id
        message.headers = entry.headers
        message.ttl_ms = entry.ttl_ms or message.expires_at - entry.created_at
        kept.append(message)
    messages[:] = kept


def bodies_in_memory(db: State, entries: Sequence[Entry]) -> list[bytes] | None:
    """The bodies of entries; None where a body or metadata must be read from the engine."""
    get = db.bodies.get
    found = []
    for entry in entries:
        body = get(entry.id)
        if body is None or entry.created_at == UNKNOWN:
            return None
        found.append(body)
    return found


async def read_bodies(db: State, queue: Queue, entries: Sequence[Entry]) -> dict[int, bytes]:
    """Read the bodies of entries, by position, and their metadata if it is not known yet.

    An entry that can't be read is left out and set aside: it is named in the server's log, stays
    stored as it is, and is never handed out.
    """
    stored = await _read(db, entries)
    found = {}
    for entry in entries:
        with _setting_aside(db, queue, entry):
            key = PAYLOAD_PREFIX + entry.id.to_bytes(8, "big")
            body = records.decode_payload(readable(stored, key))
            _learn(db, entry, stored)
            found[entry.position] = body
    return found


async def read_metadata(db: State, queue: Queue, entries: Iterable[Entry]) -> None:
    """Read the metadata of entries whose metadata is not known yet."""
    cold = [entry for entry in entries if entry.created_at == UNKNOWN]
    stored = await db.read([db.log_key(entry.id) for entry in cold])
    for entry in cold:
        with _setting_aside(db, queue, entry):
            _learn(db, entry, stored)


@contextmanager
def _setting_aside(db: State, queue: Queue, entry: Entry) -> Iterator[None]:
    """Set an entry aside when it can't be read, unless it has left the queue."""
    try:
        yield
    except CodecError as exc:
        if db.is_current(queue) and queue.find(entry.position) is entry:
            set_aside(queue, entry, str(exc))


async def _read(db: State, entries: Sequence[Entry]) -> dict[bytes, Stored]:
    """Read the payloads of entries, and metadata where it is not known yet."""
    wanted: list[bytes] = []
    known: dict[bytes, Stored] = {}
    for entry in entries:
        key = PAYLOAD_PREFIX + entry.id.to_bytes(8, "big")
        body = db.bodies.get(entry.id)
        if body is None:
            wanted.append(key)
        else:
            known[key] = b"\x03" + body
        if entry.created_at == UNKNOWN:
            wanted.append(db.log_key(entry.id))
    return known | await db.read(wanted)


def _learn(db: State, entry: Entry, stored: Mapping[bytes, Stored]) -> None:
    if entry.created_at == UNKNOWN:
        metadata = records.decode_metadata(readable(stored, db.log_key(entry.id)))
        _, client_id, headers = records.split_headers(metadata)
        entry.created_at, entry.client_id = metadata.received_at, client_id
        entry.headers = headers or None


def set_aside(queue: Queue, entry: Entry, why: str) -> None:
    """Never hand out an entry again because its payload or metadata can't be read.

    Its claim continues: it may be readable after the next start, and must not be claimed twice.
    That it is damaged is not stored, so its page stays as it is on disk.
    """
    extras = entry.ensure_extras()
    if extras.damaged:
        return
    logger.error("message %s of %s is set aside: %s", entry.id, queue.ref, why)
    if entry.delayed:
        entry.delayed = False
        queue.delayed_count -= 1
    elif entry.claim is None and not extras.parked_until:
        queue.ready_count -= 1
    extras.damaged = True


async def read_attempts(db: State, entries: Sequence[Entry]) -> Mapping[int, Sequence[Attempt]]:
    """Read the attempts of entries, by position.

    Attempts that are damaged, or deleted meanwhile, are left out.
    """
    wanted = {
        entry.position: [keys.attempt_key(extras.history, one.number) for one in extras.kept]
        for entry in entries
        if (extras := entry.extras) is not None and extras.kept
    }
    stored = await db.read(key for of_entry in wanted.values() for key in of_entry)
    found: dict[int, list[Attempt]] = {}
    for position, of_entry in wanted.items():
        found[position] = []
        for key in of_entry:
            try:
                if key in stored:
                    found[position].append(records.decode_attempt(readable(stored, key)))
            except CodecError as exc:
                logger.error("damaged: %s", exc)
    return found


async def list_messages(db: State, ref: QueueRef, selection: ListQuery) -> Page:
    """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
    limit, version = selection.limit, selection.version
    exclude_client_id = selection.exclude_client_id
    queue = db.queue(ref, version)
    if queue is None:
        return Page((), None)
    after, last = resolve(db, selection.marker, queue), resolve(db, selection.until, queue)
    page = Page((), None)
    takes_all = selection.include_claimed and selection.include_delayed
    takes_all = takes_all and exclude_client_id is None
    step = min(limit, MAX_EXAMINED) if takes_all else MAX_EXAMINED
    while True:
        start = -1 if after is None else after
        current, now = await prepared(
            db, ref, version, partial(cold_after, position=start, count=step), reads=True
        )
        if current is None:
            return page
        queue = current
        found: list[Entry] = []
        examined, reached, unknown = 0, after, False
        for entry in _between(queue, start, last, step):
            damaged = is_damaged(entry)
            if exclude_client_id is not None and entry.created_at == UNKNOWN and not damaged:
                unknown = True
                break
            examined += 1
            reached = entry.position
            if is_wanted(selection, entry, now) and (
                exclude_client_id is None or entry.client_id != exclude_client_id
            ):
                found.append(entry)
                if len(found) == limit:
                    break
        queue.examined += examined
        if unknown or (len(found) < limit and examined == step < MAX_EXAMINED):
            await read_metadata(db, queue, list(islice(queue.after(start), examined + limit)))
            step = MAX_EXAMINED  # time has passed: look again
            continue
        if examined:
            page.marker = after = reached
        if found:
            page.messages = await read(
                db, queue, found, now, details=selection.details, bare=selection.bare
            )
            if page.messages:
                return page
        if examined < step and len(found) < limit:
            return page
        await db.turns.wait()


def is_wanted(selection: ListQuery, entry: Entry, now: int) -> bool:
    """Whether a listing shows an entry, apart from which client posted it."""
    return (
        entry.expires_at > now
        and (selection.include_claimed or not (entry.holder(now) or entry.is_parked(now)))
        and (selection.include_delayed or not entry.delayed or entry.visible_at <= now)
        and not is_damaged(entry)
    )


def _between(queue: Queue, start: int, last: int | None, step: int) -> Iterator[Entry]:
    """The entries after `start` up to `last`, as many as one step examines."""
    entries = islice(queue.after(start), step)
    return entries if last is None else takewhile(lambda entry: entry.position <= last, entries)


async def read(
    db: State,
    queue: Queue,
    found: Sequence[Entry],
    now: int,
    *,
    details: bool = False,
    bare: bool = False,
) -> list[Message]:
    """Make messages of entries; answer once the last change of them is durable."""
    epoch, failures = queue.epoch, db.committer.failures
    messages = [entry.view(db.id_texts.write(entry.shown_id), now) for entry in found]
    if details:
        attempts = await read_attempts(db, found)
        for message in messages:
            message.attempts = attempts.get(message.position, ())
    if not bare:
        await fill(db, queue, found, messages)
    await confirm(db, queue, epoch, failures)
    return messages


async def confirm(db: State, queue: Queue, epoch: int, failures: int) -> None:
    """Wait until what was read of a queue up to a batch, `epoch`, is durable.

    `failures` is how many batches had failed when it was read. Raises Unavailable: another one
    failed since, so that what was read may never be stored.
    """
    if db.committer.failures != failures:
        db.committer.check_readable()
        if not db.is_current(queue):
            raise Unavailable("A write failed meanwhile; what was read may not be stored.")
    await db.committer.visible(epoch)


def find_all_live(db: State, queue: Queue, ids: Collection[str], now: int) -> list[Entry]:
    """The live entries of the queue with these ids, each once."""
    read_name = db.id_texts.read
    found = []
    for text in dict.fromkeys(ids):
        for name in read_name(text):
            entry = queue.find_shown(name)
            if entry is not None and entry.expires_at > now:
                found.append(entry)
    return found


def find_live(db: State, queue: Queue, text: str, now: int) -> Entry | None:
    """The first live entry of the queue with this id."""
    for name in db.id_texts.read(text):
        entry = queue.find_shown(name)
        if entry is not None and entry.expires_at > now:
            return entry
    return None


def cold_of_ids(db: State, ids: Collection[str]) -> Callable[[Queue], list[QueuePage]]:
    """Make a function that finds the cold pages that may have these ids."""

    def needed(queue: Queue) -> list[QueuePage]:
        return cold_of_shown_ids(queue, chain.from_iterable(map(db.id_texts.read, ids)))

    return needed


def resolve(db: State, marker: Marker | None, queue: Queue) -> int | None:
    """The position that a marker means in this queue."""
    if marker is None:
        return None
    for shown_id in db.id_texts.read(marker.message_id or ""):
        position = queue.moved.get(shown_id, shown_id)
        page = queue.page_of(position)
        if page is not None and (page.summary is not None or position in page.entries):
            return position
    return marker.position


_STEP = 50
"""Messages that one step looks for: each may lie in another page, which is loaded whole."""


async def list_group(db: State, ref: QueueRef, selection: ListQuery, group: str) -> Page:
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
        await db.turns.wait()


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
