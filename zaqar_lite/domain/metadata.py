"""Queue metadata: the reserved attributes, what they may hold, and what they mean.

Keys that begin with `_` are reserved; unknown ones are stored as they are. Zaqar's own attributes
are matched exactly (zaqar-behaviour 2.1, 2.2) except where upstream crashes or accepts what cannot
work: those are refused here (`""` for a number, a threshold below 1, a queue that is its own
dead-letter queue).
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from zaqar_lite.domain.backoff import ATTRIBUTE as BACKOFF
from zaqar_lite.domain.backoff import parse_backoff
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import MAX_CLAIM_COUNT, MAX_QUEUE_NAME, MIN_MESSAGE_TTL, Limits
from zaqar_lite.domain.models import (
    MAX_REDRIVEN,
    NO_LIMIT,
    Capability,
    DeadLetter,
    QueueRef,
    Retries,
)
from zaqar_lite.domain.retry_policy import ATTRIBUTE as RETRY_POLICY
from zaqar_lite.domain.retry_policy import check_policy

_QUEUE_NAME = re.compile(r"[a-zA-Z0-9_\-.]+")

FILTER = "_filter"
NOTIFY_ON_POST = "_notify_on_post"
ENCRYPT = "_enable_encrypt_messages"
MONITOR = "_monitor"
PRIORITY = "_priority"
DONE_RETENTION = "_done_retention"
FAILED_RETENTION = "_failed_retention"
NEEDED: Mapping[str, Capability] = {
    FILTER: Capability.FAN_OUT,
    PRIORITY: Capability.FAN_OUT,
    DONE_RETENTION: Capability.HISTORY,
    FAILED_RETENTION: Capability.HISTORY,
}
"""The attributes that only some message stores know, and the capability that each needs."""
MAX_REDRIVES = "_max_redrives"
DEFAULT_MAX_REDRIVES = 3
TTL_AFTER_DELAY = "_ttl_after_delay"
RESERVED = frozenset(
    {
        "_max_messages_post_size",
        "_default_message_ttl",
        "_default_message_delay",
        "_dead_letter_queue",
        "_dead_letter_queue_messages_ttl",
        "_max_claim_count",
        ENCRYPT,
        "_max_failures",
        BACKOFF,
        RETRY_POLICY,
        NOTIFY_ON_POST,
        MONITOR,
        "_flavor",
        MAX_REDRIVES,
        TTL_AFTER_DELAY,
        *NEEDED,
    }
)
"""The keys that mean something; others that begin with `_` are stored with a warning."""
SUBSCRIBED = "~subscribed"
"""Ours, and never shown: counts up with each subscription, and is there while a queue has any."""
ORDERED = "~ordered"
"""Ours, and never shown: the ids of the subscriptions that are delivered to in strict order."""
MAX_ORDERED = 10
"""Ordered subscriptions of a queue: each post writes a note for each of them."""
_OURS = (SUBSCRIBED, ORDERED)
_LIMITS = ("_max_claim_count", "_max_failures")
_DECIDE_LETTERS = frozenset({*_LIMITS, "_dead_letter_queue", FAILED_RETENTION})
_MOST_TOLD = 3
MAX_RETENTION = (1 << 32) - 1
"""Seconds: the RFC stores a retention as u32; 0 means for ever."""


def is_queue_name(name: str) -> bool:
    """Tell whether `name` is a valid queue name: 1..64 of letters, digits, `_`, `-` and `.`.

    Not `.` and `..`: on its way a path that ends in them is another path.
    """
    return (
        len(name) <= MAX_QUEUE_NAME
        and _QUEUE_NAME.fullmatch(name) is not None
        and name not in (".", "..")
    )


def overlay(limits: Limits) -> dict[str, Any]:
    """The reserved attributes that every queue shows, with the defaults of this server."""
    return {
        "_max_messages_post_size": limits.max_messages_post_size,
        "_default_message_ttl": limits.default_message_ttl,
        "_default_message_delay": limits.default_message_delay,
        "_dead_letter_queue": None,
        "_dead_letter_queue_messages_ttl": None,
        "_max_claim_count": None,
        ENCRYPT: False,
    }


def with_overlay(metadata: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Show metadata with the defaults filled in where a reserved value is absent or falsy."""
    shown = visible(metadata)
    for key, default in overlay(limits).items():
        if not shown.get(key):
            shown[key] = default
    return shown


def visible(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without what this server keeps for itself."""
    return {key: value for key, value in metadata.items() if key not in _OURS}


def hidden(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What this server keeps for itself in a queue's metadata."""
    return {key: metadata[key] for key in _OURS if key in metadata}


def validate(queue: QueueRef, metadata: Mapping[str, Any], limits: Limits) -> None:
    """Check the reserved attributes of a queue.

    Raises:
        Invalid: names the attribute, what it may hold and what it held.
    """
    for key in _OURS:
        if key in metadata:
            raise Invalid(f"{key} is no key for users: this server keeps its own value there.")
    _whole(metadata, "_default_message_ttl", MIN_MESSAGE_TTL, limits.max_message_ttl)
    _whole(metadata, "_max_messages_post_size", 1, limits.max_messages_post_size)
    _whole(metadata, "_default_message_delay", 0, limits.max_message_delay)
    _whole(metadata, "_max_claim_count", 1, MAX_CLAIM_COUNT)
    _whole(metadata, "_max_failures", 1, MAX_CLAIM_COUNT)
    parse_backoff(metadata.get(BACKOFF), limits.max_claim_ttl)
    _whole(metadata, "_dead_letter_queue_messages_ttl", MIN_MESSAGE_TTL, limits.max_message_ttl)
    _whole(metadata, DONE_RETENTION, 0, MAX_RETENTION)
    _whole(metadata, FAILED_RETENTION, 0, MAX_RETENTION)
    _whole(metadata, MAX_REDRIVES, 1, MAX_REDRIVEN)
    check_policy(metadata.get(RETRY_POLICY))
    for key in (NOTIFY_ON_POST, MONITOR, TTL_AFTER_DELAY):
        value = metadata.get(key)
        if value is not None and not isinstance(value, bool):
            raise Invalid(f"{key} must be true or false.")
    _dead_letter_queue(queue, metadata.get("_dead_letter_queue"))
    if metadata.get(ENCRYPT) not in (None, False, True):
        raise Invalid(f"{ENCRYPT} must be true or false.")
    for key, kind, word in (
        ("_flavor", str, "a string"),
        (FILTER, str, "a string"),
        (PRIORITY, str, "a string"),
    ):
        value = metadata.get(key)
        if value is not None and not isinstance(value, kind):
            raise Invalid(f"{key} must be {word}.")


def unknown_keys(metadata: Mapping[str, Any]) -> str | None:
    """Say which keys look like options of a queue and are none; None if there are none.

    They are stored, as upstream does, so a mistyped option would do nothing without a word.
    """
    unknown = [key for key in metadata if key.startswith("_") and key not in RESERVED]
    if not unknown:
        return None
    told = ", ".join(_with_nearest(key) for key in unknown[:_MOST_TOLD])
    more = len(unknown) - _MOST_TOLD
    return f"Stored, but not options of a queue: {told}{f' and {more} more' if more > 0 else ''}."


def idle_limit(metadata: Mapping[str, Any], changed: Collection[str]) -> str | None:
    """Say that a limit does nothing, because the queue has no place for dead letters.

    None when it has one, or when none of the `changed` keys has to do with it.
    """
    if _DECIDE_LETTERS.isdisjoint(changed):
        return None
    limits = [key for key in _LIMITS if metadata.get(key)]
    has_place = dead_letter_target(metadata) or metadata.get(FAILED_RETENTION) is not None
    if not limits or has_place:
        return None
    verb = "have" if len(limits) > 1 else "has"
    return (
        f"{' and '.join(limits)} {verb} no effect: the queue has no _dead_letter_queue "
        f"(and no {FAILED_RETENTION})."
    )


def _with_nearest(key: str) -> str:
    near = difflib.get_close_matches(key[:MAX_QUEUE_NAME], sorted(RESERVED), 1, 0.5)
    shown = ascii(key[:MAX_QUEUE_NAME])
    return f"{shown} (did you mean {near[0]}?)" if near else shown


def check_size(metadata: Mapping[str, Any], limits: Limits) -> None:
    """Check that metadata which grew by patches stay within the size that one PUT may have.

    Raises:
        Invalid: too large.
    """
    size = len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode())
    if size > limits.max_queue_metadata:
        raise Invalid(
            f"The metadata would have {size} bytes; {limits.max_queue_metadata} are allowed."
        )


def dead_letter_target(metadata: Mapping[str, Any]) -> str | None:
    """The name of the queue's dead-letter queue, whether or not the policy is active."""
    target = metadata.get("_dead_letter_queue")
    return target if isinstance(target, str) else None


def dead_letter_policy(queue: QueueRef, metadata: Mapping[str, Any]) -> DeadLetter | None:
    """Where a queue's dead letters go, and after how many claims or failures; None: nowhere.

    Without a target, `_failed_retention` makes the queue's own failed list the target.
    """
    max_claims = metadata.get("_max_claim_count") or NO_LIMIT
    max_failures = _stored_limit(metadata.get("_max_failures"))
    target = dead_letter_target(metadata)
    if target is not None:
        ttl = metadata.get("_dead_letter_queue_messages_ttl")
        ttl_ms = None if ttl is None else ttl * 1000
        return DeadLetter(QueueRef(queue.project, target), max_claims, ttl_ms, max_failures)
    retention = metadata.get(FAILED_RETENTION)
    return (
        None if retention is None else DeadLetter(None, max_claims, retention * 1000, max_failures)
    )


def retries(queue: QueueRef, metadata: Mapping[str, Any]) -> Retries:
    """What becomes of a queue's messages that fail, by its stored record.

    Servers that did not know `_max_failures` and `_retry_backoff` stored whatever they were given.
    What this one would refuse counts as absent: else each request and each sweep would fail.
    """
    try:
        backoff = parse_backoff(metadata.get(BACKOFF), MAX_RETENTION)
    except Invalid:
        backoff = None
    return Retries(dead_letter_policy(queue, metadata), backoff)


def max_redrives(metadata: Mapping[str, Any]) -> int:
    """How often a letter of a dead-letter queue is redriven unless somebody insists."""
    stored = _stored_limit(metadata.get(MAX_REDRIVES))
    return DEFAULT_MAX_REDRIVES if stored == NO_LIMIT else stored


def _stored_limit(value: Any) -> int:  # noqa: ANN401 - any JSON
    """A stored limit; NO_LIMIT where it is none that this server would take."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 1 <= value <= MAX_CLAIM_COUNT else NO_LIMIT


def _whole(metadata: Mapping[str, Any], key: str, least: int, most: int) -> None:
    value = metadata.get(key)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(f"{key} must be an integer.")
    if not least <= value <= most:
        raise Invalid(f"{key} must be between {least} and {most}; it is {value}.")


def _dead_letter_queue(queue: QueueRef, name: Any) -> None:  # noqa: ANN401 - any JSON
    if name is None:
        return
    if not isinstance(name, str) or not is_queue_name(name):
        raise Invalid(
            "_dead_letter_queue must be the name of a queue: 1 to 64 letters, digits, '_', '-' "
            "or '.'."
        )
    if name == queue.name:
        raise Invalid("_dead_letter_queue must be another queue than the queue itself.")
