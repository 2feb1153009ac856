"""A page's record: from its entries, and back, or as what must be known while they stay there."""

from collections.abc import Mapping
from itertools import count as counted
from itertools import islice

from zaqar_lite.domain.attempts import MAX_CLAIMS
from zaqar_lite.domain.models import Origin
from zaqar_lite.storage.opendata.entries import (
    PAGE_SIZE,
    POSITION_BITS,
    UNKNOWN,
    Claim,
    Entry,
    Page,
    Summary,
)
from zaqar_lite.storage.opendata.format import active

_NO_EXTRA = active.Extra()


def encode_page(page: Page) -> bytes:
    """Encode a page as it is now."""
    available: list[int] = []
    in_flight: list[int] = []
    extras: list[bytes] = []
    for entry in islice(page.entries.values(), page.encoded_count, None):
        claim, past = entry.claim, entry.past
        if claim is not None and claim.ttl_ms:
            in_flight += (
                entry.id, entry.priority, claim.claimed_at,
                claim.lease(entry.position) if claim.leases else claim.deadline,
                entry.attempts,
            )  # fmt: skip
        elif past is not None and past.parked_until:
            until = past.parked_until
            in_flight += (entry.id, entry.priority, until, until, entry.attempts)
        else:
            available += (
                entry.id, entry.priority, entry.visible_at, entry.expires_at, entry.attempts,
            )  # fmt: skip
            if past is None and entry.is_plain:
                continue
        extra = _extra(entry)
        if extra is not None:
            extras.append(extra)
    elements = page.encoded + active.encode_elements(available)
    number = page.encoded_count + len(available) // 5
    if not in_flight and not extras and number < PAGE_SIZE:
        page.encoded, page.encoded_count = elements, number
    else:
        page.encoded, page.encoded_count = b"", 0  # nothing more is appended to a full page
    return active.join_active(number, elements, in_flight, extras)


def _extra(entry: Entry) -> bytes | None:
    """Encode what the entry has beyond the RFC's fields."""
    past, claim = entry.past, entry.claim
    parked = past is not None and past.parked_until != 0
    held = None
    if parked or (claim is not None and claim.ttl_ms):
        held = entry.visible_at, entry.expires_at
    last_claim = None if past is None else past.last_claim
    if entry.is_plain and (past is None or past.is_plain):
        return active.encode_plain_extra(entry.id, held, last_claim, parked=parked)
    extra = active.Extra(last_claim=last_claim, parked=parked)
    if held is not None:
        extra.visible_at, extra.deadline = held
    if not entry.is_plain and entry.ttl_ms:
        extra.ttl_ms = entry.ttl_ms
    if entry.position != entry.id:
        extra.position = entry.position
    if past is not None:
        extra.renamed, extra.shared = past.renamed, past.shared
        origin = past.origin
        if origin is not None:
            extra.reason = None if origin.reason == MAX_CLAIMS else origin.reason
            extra.source, extra.moved_at = origin.source, origin.moved_at
            extra.moved_count = origin.claim_count
            extra.moved_client, extra.redriven = origin.last_client_id, origin.redriven
            if origin.last_claim_id is not None:
                extra.moved_claim = bytes.fromhex(origin.last_claim_id)
    return active.encode_extra(entry.id, extra)


def plain_summary(page: Page, value: bytes, now: int) -> Summary | None:
    """Set the bounds of a page by its record, and summarise it, where nothing need be looked at.

    That is: all of its entries are ready, or all are delayed, and they have nothing beyond the
    RFC's fields. None otherwise. Raises CodecError: it can't be read.
    """
    available, in_flight, extras = active.read_active(value)
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
    when its claim and its lease say they begin and end. Raises CodecError: it can't be read.
    """
    available, in_flight, extras = active.read_active(value)
    entries: list[Entry] = []
    held: list[tuple[Entry, int, int]] = []
    places = counted()
    for message_id, priority, visible_at, deadline, attempts in active.rows_of_five(available):
        extra = extras.get(next(places)) if extras else None
        if extra is None and not attempts:
            entry = Entry(
                message_id, message_id, page, priority, visible_at, deadline, 0, UNKNOWN, None, None
            )
        else:
            entry = _restored(page, message_id, priority, attempts, extra)
            entry.visible_at, entry.expires_at = visible_at, deadline
        entry.delayed = visible_at > now
        entries.append(entry)
    for message_id, priority, claimed_at, lease, attempts in active.rows_of_five(in_flight):
        extra = extras.get(next(places))
        entry = _restored(page, message_id, priority, attempts, extra)
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


def _restored(
    page: Page, message_id: int, priority: int, attempts: int, extra: active.Extra | None
) -> Entry:
    """Make an entry from a page's record; deadlines and metadata are the caller's to add."""
    extra = extra or _NO_EXTRA
    position = message_id if extra.position is None else extra.position
    entry = Entry(
        message_id, position, page, priority, 0, 0, extra.ttl_ms or 0, UNKNOWN, None, None
    )
    entry.attempts = attempts
    if extra.last_claim or extra.shared or extra.renamed or extra.source is not None:
        past = entry.remember()
        past.last_claim, past.shared = extra.last_claim, extra.shared
        past.renamed = extra.renamed
        if extra.source is not None:
            past.origin = Origin(
                extra.source,
                extra.moved_at,
                extra.moved_count,
                None if extra.moved_claim is None else extra.moved_claim.hex(),
                extra.moved_client,
                extra.reason or MAX_CLAIMS,
                extra.redriven,
            )
    return entry
