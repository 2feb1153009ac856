"""What to do with single messages of a claim, and what the server did."""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any, Self

from zaqar_lite.client.arguments import takes, text, whole
from zaqar_lite.client.errors import BY_STATUS, ClaimLost, NoDeadLetters, StatusError
from zaqar_lite.client.models import Message

MAX_REASON = 128
MAX_DETAIL = 2_048
"""Bytes in UTF-8 that a server takes."""
NO_TARGET = "no_target"
"""The outcome for a dead letter when the queue has no place for it."""


class Act(enum.StrEnum):
    """What is done with a message of a claim; the names are those of the request's fields."""

    DELETE = "delete"
    RELEASE = "release"
    EXTEND = "extend"
    DEAD = "dead"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What becomes of one message of a claim; made by `delete`, `release`, `extend` and `dead`."""

    id: str
    act: Act
    delay: int | None = None
    failed: bool = False
    reason: str | None = None
    detail: str | None = None
    ttl: int | None = None

    @classmethod
    def delete(cls, message: Message | str) -> Self:
        """Delete it: it is processed."""
        return cls(id=_id(message), act=Act.DELETE)

    @classmethod
    def release(
        cls,
        message: Message | str,
        *,
        delay: int | None = None,
        failed: bool = False,
        reason: str | None = None,
        detail: str | None = None,
    ) -> Self:
        """Give it back: at once, or so many seconds later.

        A failure counts towards the queue's `_max_failures`; without a delay of its own it waits
        as the queue's `_retry_backoff` says.
        """
        return cls(
            id=_id(message),
            act=Act.RELEASE,
            delay=None if delay is None else whole("delay", delay),
            failed=failed,
            reason=reason,
            detail=detail,
        )

    @classmethod
    def extend(cls, message: Message | str, ttl: int) -> Self:
        """Hold it for so many seconds from now."""
        return cls(id=_id(message), act=Act.EXTEND, ttl=whole("ttl", ttl))

    @classmethod
    def dead(
        cls, message: Message | str, *, reason: str | None = None, detail: str | None = None
    ) -> Self:
        """Send it to the dead letters now."""
        return cls(id=_id(message), act=Act.DEAD, reason=reason, detail=detail)

    @property
    def keeps(self) -> bool:
        """Whether the claim holds the message afterwards."""
        return self.act is Act.EXTEND

    def entry(self) -> "str | dict[str, Any]":
        """Return the message's entry in the request."""
        if self.act is Act.DELETE:
            return self.id
        numbers = {"delay": self.delay, "failed": self.failed or None, "ttl": self.ttl}
        fields = {"id": self.id, **numbers, "reason": self.reason, "detail": self.detail}
        return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """What became of a settlement; `outcome` is the server's word for what was not done."""

    id: str
    status: int
    outcome: str | None = None
    description: str | None = None

    @property
    def done(self) -> bool:
        """Whether it is done; a message that is gone needs no settling."""
        return self.status in {204, 404}

    def check(self) -> None:
        """Return if it is done.

        Raises:
            ClaimLost: the claim does not hold the message (any more).
            NoDeadLetters: its queue has no place for dead letters.
        """
        if self.done:
            return
        kind: type[StatusError] = BY_STATUS.get(self.status, StatusError)
        if self.outcome == NO_TARGET:
            kind = NoDeadLetters
        elif self.status in {403, 409}:
            kind = ClaimLost
        raise kind("The message could not be settled", self.description, status=self.status)


def document(settlements: Iterable[Settlement]) -> dict[str, list[Any]]:
    """Return the body of the request that settles these."""
    fields: dict[str, list[Any]] = {}
    for one in settlements:
        takes("settlements", one, Settlement, "Settlement.delete(...) and the like")
        fields.setdefault(one.act.value, []).append(one.entry())
    return fields


def cut(text: str, size: int) -> str:
    """Return the beginning of a text that the server will take."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _id(message: Message | str) -> str:
    return message.id if isinstance(message, Message) else text("message", message)
