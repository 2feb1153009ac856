"""The rule of edits: which delayed messages may be changed, and which deadlines they then have."""

from typing import NamedTuple

from zaqar_lite.domain.errors import DueChanged, Invalid
from zaqar_lite.domain.models import Edit
from zaqar_lite.domain.refusals import not_delayed


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
