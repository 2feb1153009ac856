"""What stores refuse, in one text each for all drivers, and which edits they refuse."""

from collections.abc import Collection
from typing import NamedTuple

from zaqar_lite.domain.errors import (
    Conflict,
    DueChanged,
    Invalid,
    LimitReached,
    NotFound,
    QueueChanged,
    Unsupported,
)
from zaqar_lite.domain.models import Edit, QueueRef, RefusalReason


def no_message(message_id: str) -> NotFound:
    """There is no such live message in the queue."""
    return NotFound(f"Message {message_id} does not exist.")


def no_claim(claim_id: str) -> NotFound:
    """There is no such live claim in the queue."""
    return NotFound(f"Claim {claim_id} does not exist or has expired.")


def not_delayed(message_id: str) -> Conflict:
    """Only delayed messages can be edited."""
    return Conflict(f"Message {message_id} is not delayed (any more).")


def queue_changed(queue: QueueRef) -> QueueChanged:
    """The queue's record is not the one that the caller has read."""
    return QueueChanged(f"The queue {queue.name!r} changed or was deleted meanwhile.")


def too_many_queues(most: int) -> LimitReached:
    """The project may have no more queues."""
    return LimitReached(f"The project has {most} queues, as many as it may have.")


def too_many_messages(queue: QueueRef, most: int, *, wait_ms: int = 0) -> LimitReached:
    """The queue may hold no more messages; it is known to stay full for `wait_ms`."""
    text = f"The queue {queue.name!r} may hold {most} messages."
    return LimitReached(text, retry_after=_seconds(wait_ms))


def too_many_keys(queue: QueueRef, most: int, *, wait_ms: int) -> LimitReached:
    """The queue may remember no more idempotency keys until the oldest ends, in `wait_ms`."""
    text = f"The queue {queue.name!r} may remember {most} idempotency keys."
    return LimitReached(text, retry_after=_seconds(wait_ms))


def no_failed_list(store: str) -> Unsupported:
    """The store has no list of failed messages, only dead-letter queues."""
    return Unsupported(f"The {store} store keeps no failed messages; the embedded one does.")


def delete_refusal(holder: str | None, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why these claims may not delete a message that the live claim `holder` holds, if any does."""
    if holder is None:
        return RefusalReason.NOT_CLAIMED if claim_ids else None
    return None if holder in claim_ids else RefusalReason.CLAIMED


class Deadlines(NamedTuple):
    """When a message's delay ends, and when the message expires."""

    due: int
    expires: int


def edited(edit: Edit, before: Deadlines, now: int) -> Deadlines:
    """The deadlines of a message after an edit; a message that is not delayed was due before.

    Raises:
        Conflict: it is not delayed (any more).
        DueChanged: it is due at another instant than its editor has seen.
        Invalid: it would expire before its delay is over.
    """
    if before.due <= now:
        raise not_delayed(edit.message_id)
    if edit.if_due is not None and edit.if_due // 1000 != before.due // 1000:
        raise DueChanged(edit.message_id)
    due = before.due if edit.delay_ms is None else now + edit.delay_ms
    expires = before.expires if edit.ttl_ms is None else now + edit.ttl_ms
    if expires < due:
        raise Invalid(
            f"Message {edit.message_id} would expire {due - expires} ms before its delay is over: "
            "give a longer ttl or a shorter delay."
        )
    return Deadlines(due, expires)


def _seconds(milliseconds: int) -> int:
    """In whole seconds, at least one."""
    return max(1, -(-milliseconds // 1000))
