"""Subscriptions and their deliveries as the SDK returns them."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """A receiver of a queue's messages.

    Attributes:
        source: the queue's name.
        age: seconds since it was made or its ttl was changed.
        options: the values of `post_headers` are masked.
        disabled: why the server stopped to deliver; None while it delivers.
    """

    id: str
    source: str
    subscriber: str
    ttl: int
    age: int
    options: Mapping[str, Any]
    confirmed: bool
    disabled: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver a message.

    Attributes:
        id: the message's.
        status: what the receiver answered; None when it did not, and `error` says why.
        answer: the first KiB of it.
        next_at: when it is tried again.
    """

    id: str
    at: dt.datetime | None
    attempt: int
    outcome: str
    status: int | None
    milliseconds: int
    answer: str
    error: str
    next_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A message that could not be delivered, with the notification that was sent."""

    id: str
    message_id: str
    at: dt.datetime | None
    attempts: int
    reason: str
    message: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """What a receiver answered to a test notification."""

    outcome: str
    status: int | None
    milliseconds: int
    answer: str
    error: str
