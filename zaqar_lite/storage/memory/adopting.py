"""Adopting: messages of another store enter a queue unchanged."""

from collections.abc import Sequence

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DEFAULT_PRIORITY, Message, QueueRef
from zaqar_lite.storage.memory.entries import Entry
from zaqar_lite.storage.memory.state import State


def adopt(
    state: State,
    clock: Clock,
    ref: QueueRef,
    messages: Sequence[Message],
    *,
    source: str,
    number: int,
) -> None:
    """Add messages of another store, unless this call is a repeat; see the seam."""
    now_us = clock.now_us()
    now = now_us // 1000
    if not state.is_new_batch(ref, source, number, now):
        return
    live = [message for message in messages if message.expires_at > now]
    if not live:
        return
    for position, message in enumerate(live, state.take_positions(len(live), now_us)):
        entry = Entry(
            message.id,
            position,
            message.body,
            message.ttl_ms,
            message.created_at,
            message.expires_at,
            DEFAULT_PRIORITY,
            message.client_id or "",
            message.headers,
        )
        entry.claim_count, entry.failure_count = message.claim_count, message.failure_count
        entry.origin, entry.attempts = message.origin, tuple(message.attempts)
        due = message.delay_expires_at or 0
        entry.delay_expires_at = due
        state.add(ref, entry, due if due > now else 0)
