"""A page's record as its entries, or as what must be known while they stay on disk."""

from collections.abc import Mapping
from itertools import count as counted

from zaqar_lite.storage.opendata.entries import (
    POSITION_BITS,
    UNKNOWN,
    Claim,
    Entry,
    Page,
    Summary,
)
from zaqar_lite.storage.opendata.format.active import read_active, rows_of_five


def plain_summary(page: Page, value: bytes, now: int) -> Summary | None:
    """Set the bounds of a page by its record, and summarise it, where nothing need be looked at.

    That is: all of its entries are ready, or all are delayed, and they have nothing beyond the
    RFC's fields. None otherwise.

    Raises:
        CodecError: it can't be read.
    """
    available, in_flight, extras = read_active(value)
    if not available or in_flight or extras or any(available[4::5]):
        return None
    number, visible = len(available) // 5, available[2::5]
    last = max(visible)
    page.first = min(available[::5])
    priority = min(available[1::5])
    if last <= now:
        page.best = priority << POSITION_BITS | page.first
        summary = Summary(number, ready=number)
    elif (first := min(visible)) > now:
        page.next_visible, page.best_waiting = first, priority
        summary = Summary(number, delayed=number, last_visible=last)
    else:
        return None
    page.min_expires = min(available[3::5])
    return summary


def entries_of(
    page: Page, value: bytes, holders: Mapping[int, Claim], now: int
) -> tuple[dict[int, Entry], list[tuple[Entry, int, int]]]:
    """Make the entries of a page from its record, by position, but for their attempts.

    `holders` are the claims by the names of what they hold. Answers those in flight too, each with
    when its claim and its lease say they begin and end.

    Raises:
        CodecError: it can't be read.
    """
    available, in_flight, extras = read_active(value)
    entries: list[Entry] = []
    held: list[tuple[Entry, int, int]] = []
    places = counted()
    for message_id, priority, visible_at, deadline, attempts in rows_of_five(available):
        extra = extras.get(next(places)) if extras else None
        if extra is None and not attempts:
            entry = Entry(
                message_id, message_id, page, priority, visible_at, deadline, 0, UNKNOWN, None, None
            )
        else:
            entry = Entry.restore(page, message_id, priority, attempts, extra)
            entry.visible_at, entry.expires_at = visible_at, deadline
        entry.delayed = visible_at > now
        entries.append(entry)
    for message_id, priority, claimed_at, lease, attempts in rows_of_five(in_flight):
        extra = extras.get(next(places))
        entry = Entry.restore(page, message_id, priority, attempts, extra)
        if extra is not None and extra.deadline is not None:
            entry.visible_at, entry.expires_at = extra.visible_at or 0, extra.deadline
        else:  # a literal record of the RFC keeps no deadline here: it lives at least so long
            entry.expires_at = lease + 1
        entries.append(entry)
        if extra is not None and extra.parked:
            entry.remember().parked_until = lease if lease > now else 0
            continue
        entry.claim = holders.get(entry.name)
        held.append((entry, claimed_at, lease))
    entries.sort(key=lambda entry: entry.position)
    return {entry.position: entry for entry in entries}, held
