"""What a failed handler means for its message: a later try, or the dead letters."""

import math
from numbers import Real

from zaqar_lite.client.arguments import takes
from zaqar_lite.client.models import Message
from zaqar_lite.client.settlements import MAX_DETAIL, MAX_REASON, Settlement, cut


class Retry(Exception):
    """Raised by a handler: try this message again, after so many seconds.

    Without `after` it waits as the queue's `_retry_backoff` says. It counts as a failure.
    """

    def __init__(
        self, after: float | None = None, *, reason: str | None = None, detail: str | None = None
    ) -> None:
        takes("after", after, Real, "a number of seconds (a reason goes into reason=)")
        takes("reason", reason, str)
        takes("detail", detail, str)
        if after is not None and not math.isfinite(after):
            message = f"after is a number of seconds, not {after}"
            raise ValueError(message)
        super().__init__(after, reason)
        self.after = after
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        later = "" if self.after is None else f" in {self.after:g} s"
        return f"try again{later}" + (f": {self.reason}" if self.reason else "")


class Reject(Exception):
    """Raised by a handler: this message is a dead letter now, for no later try can help."""

    def __init__(self, reason: str | None = None, *, detail: str | None = None) -> None:
        takes("reason", reason, str)
        takes("detail", detail, str)
        super().__init__(reason)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"rejected: {self.reason}" if self.reason else "rejected"


def verdict(message: Message, error: Exception, *, report: bool) -> Settlement:
    """Return what becomes of a message whose handler raised this exception.

    For an exception that is neither Retry nor Reject, the reason is its type, and with `report` the
    detail is its text.
    """
    if isinstance(error, Reject):
        return Settlement.dead(
            message, reason=_cut(error.reason, MAX_REASON), detail=_cut(error.detail, MAX_DETAIL)
        )
    if isinstance(error, Retry):
        after = None if error.after is None else max(0, math.ceil(error.after))
        return _failure(message, error.reason or _cause(error), error.detail, after)
    return _failure(message, type(error).__name__, str(error) if report else None)


def instead_of_dead(message: Message, settlement: Settlement) -> Settlement:
    """Return what becomes of a message that has no place among dead letters: it comes again."""
    return _failure(message, settlement.reason, settlement.detail)


def _failure(
    message: Message, reason: str | None, detail: str | None, after: int | None = None
) -> Settlement:
    return Settlement.release(
        message,
        delay=after,
        failed=True,
        reason=_cut(reason, MAX_REASON),
        detail=_cut(detail, MAX_DETAIL),
    )


def _cause(error: Exception) -> str:
    """Return what a handler gave up for: the exception that it caught, if there was one."""
    return type(error.__cause__ or error).__name__


def _cut(text: str | None, size: int) -> str | None:
    return None if text is None else cut(text, size)
