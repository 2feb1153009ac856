"""The AMQP headers by which publisher and relay speak."""

import re

from zaqar_lite.domain.limits import MAX_IDEMPOTENCY_KEY, MAX_PROJECT_ID, MAX_QUEUE_NAME

DUE = "due-ms"  # when the message is due: milliseconds since 1970, an integer
PROJECT = "zaqar-project"
QUEUE = "zaqar-queue"
TTL = "zaqar-ttl"  # seconds, counted from the post to Zaqar
FORWARD = "zaqar-header-"  # headers with this prefix become headers of the message in Zaqar

UNTIL = "until-ms"  # how long an id is cancelled: milliseconds since 1970, an integer

# What the relay says of a message that it parks.
FAILED_STATUS = "relay-status"
FAILED_REASON = "relay-reason"

ENVELOPE = 1024  # bytes of a post that are not the body: ttl, delay, key, punctuation

_QUEUE = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_QUEUE_NAME}}}", re.ASCII)
_KEY = re.compile(rf"[\x20-\x7e]{{1,{MAX_IDEMPOTENCY_KEY}}}")
_PROJECT = re.compile(rf"[\x21-\x7e]{{1,{MAX_PROJECT_ID}}}")
_TRACE = re.compile(r"x-(first-|last-)?death(-.*)?|x-delivery-count|x-acquired-count")


def is_queue(name: str) -> bool:
    """Whether Zaqar accepts it as the name of a queue."""
    return _QUEUE.fullmatch(name) is not None


def is_key(text: str) -> bool:
    """Whether Zaqar accepts it as an idempotency key."""
    return _KEY.fullmatch(text) is not None


def is_project(name: str) -> bool:
    """Whether it can be sent as a project: it becomes an HTTP header, so no line breaks."""
    return _PROJECT.fullmatch(name) is not None


def is_trace(name: str) -> bool:
    """Say whether a header is the broker's own record of a message's earlier trip."""
    return _TRACE.fullmatch(name) is not None
