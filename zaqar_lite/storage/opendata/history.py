"""The lists of done and of failed messages: what enters them, reading, and their retention."""

import logging
from collections.abc import Sequence

from zaqar_lite.domain.histories import HistoryEntry, HistoryPage, HistoryState
from zaqar_lite.domain.metadata import DONE_RETENTION, FAILED_RETENTION
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.entries import NEVER, PAGE_SIZE, Entry, History
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_MOST_DIGITS = 20  # of a 64-bit number; Python refuses to read thousands
_RETENTIONS = {RecordType.DONE: DONE_RETENTION, RecordType.FAILED: FAILED_RETENTION}


def keeps_done(queue: Queue) -> bool:
    """Whether acknowledged messages go to the queue's done list."""
    return queue.record is not None and queue.record.metadata.get(DONE_RETENTION) is not None


def record_done(db: State, queue: Queue, entry: Entry, now: int, client_id: str | None) -> None:
    """Append an acknowledged entry to the done list; the caller removes it from the queue."""
    if client_id is not None:
        extras = entry.ensure_extras()
        extras.consumers = (*extras.consumers, client_id)
    record(db, queue, queue.done, entry, now)


def record(db: State, queue: Queue, history: History, entry: Entry, now: int) -> None:
    """Append an entry that ends now to a list, with the consumers that held it."""
    history.append(records.EndedMessage(entry.shown_id, now, entry.attempts))
    if entry.extras is not None and entry.extras.consumers:
        consumers = records.Attempts(entry.extras.consumers)
        db.put(keys.attempts_key(entry.shown_id, queue.raw), records.encode_attempts(consumers))


async def read(
    db: State, queue: Queue, state: HistoryState, marker: str | None, limit: int
) -> HistoryPage:
    """List done or failed messages within their retention, oldest first.

    A marker is `page-message`; the list continues after that message, or with the rest of the page.
    """
    history = queue.done if state is HistoryState.DONE else queue.failed
    cutoff = _cutoff(queue, history, db.clock.now_ms())
    page, after = _read_marker(marker)
    found: list[tuple[int | None, records.EndedMessage]] = []
    for number in history.numbers(page):
        items = await _items(db, queue, history, number)
        if (number or 0) == page:
            behind = [index for index, item in enumerate(items) if item.message_id == after]
            items = items[behind[-1] + 1 :] if behind else items
        found += [(number, item) for item in items if item.ended_at > cutoff]
        if len(found) >= limit:
            break
    found = found[:limit]
    wanted = [keys.attempts_key(item.message_id, queue.raw) for _, item in found]
    stored = await db.read(wanted)
    entries = []
    for key, (_, item) in zip(wanted, found, strict=True):
        value = stored.get(key)
        consumers = records.decode_attempts(value).consumers if isinstance(value, bytes) else ()
        name = db.id_texts.write(item.message_id)
        entries.append(HistoryEntry(name, item.ended_at, item.attempts, consumers))
    if not found:
        return HistoryPage((), None)
    number, last = found[-1]
    return HistoryPage(entries, f"{number or 0}-{last.message_id}")


def _read_marker(marker: str | None) -> tuple[int | None, int]:
    if marker is None:
        return None, 0
    page, _, message_id = marker.partition("-")
    if not (_is_number(page) and _is_number(message_id)):
        return 1 << 62, 0  # not one of our markers: an empty page
    return int(page), int(message_id)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


async def _items(
    db: State, queue: Queue, history: History, number: int | None
) -> Sequence[records.EndedMessage]:
    known = history.tail if number == history.number else history.changed.get(number)
    if known is not None:
        return list(known)
    key = keys.queue_key(history.kind, queue.raw, number)
    value = (await db.read([key])).get(key)
    if isinstance(value, Damage):
        logger.error("damaged: %s; what it lists is passed over", value)
    return records.decode_ended(value) if isinstance(value, bytes) else ()


def _cutoff(queue: Queue, history: History, now: int) -> int:
    """The retention of messages that ended up to this instant is over; -1: of none."""
    return max(-1, now - _retention_ms(queue, history))


def _retention_ms(queue: Queue, history: History) -> int:
    """How long a list keeps messages: without the queue's setting 0 ms, with 0 for ever."""
    retention = None
    if queue.record is not None:
        retention = queue.record.metadata.get(_RETENTIONS[history.kind])
    if retention is None:
        return 0
    return retention * 1000 if retention else NEVER


def next_over(queue: Queue) -> int:
    """The instant at which the first page of done or failed messages can be removed."""
    return min((
        history.first.last_ended_at + _retention_ms(queue, history)
        for history in (queue.done, queue.failed) if history
    ), default=NEVER)  # fmt: skip


async def trim(db: State, queue: Queue, now: int | None) -> int:
    """Remove pages of which the retention has ended, from both lists; all pages if `now` is None.

    One call removes about a step's worth; answers how many messages these may have had.
    """
    trimmed = 0
    for history in (queue.done, queue.failed):
        cutoff = NEVER if now is None else _cutoff(queue, history, now)
        while history and history.first.last_ended_at <= cutoff and trimmed < STEP:
            first = history.first
            gone = await _items(db, queue, history, first.number)
            if not db.is_current(queue) or not history or history.first != first:
                return trimmed  # another call removed it, or messages were added
            history.drop_first()
            for item in gone:
                db.delete(keys.attempts_key(item.message_id, queue.raw))
            db.changed(queue)
            trimmed += PAGE_SIZE
    return trimmed
