"""Queue metadata: the reserved attributes, what they may hold and mean, and how patches change it.

Keys that begin with `_` are reserved; unknown ones are stored as they are. Zaqar's own attributes
are matched exactly (zaqar-behaviour 2.1, 2.2) except where upstream crashes or accepts what cannot
work: those are refused here (`""` for a number, a threshold below 1, a queue that is its own
dead-letter queue).

`_retry_backoff` says how long a message waits after each failure, in one of three forms, in
seconds; `jitter` (0 to 1, default 0) may stand in each:

    {"type": "exponential", "min": 1, "max": 3600}    1, 2, 4, ... 3600
    {"type": "linear", "min": 10, "max": 600}         10, 20, 30, ... 600
    {"type": "list", "delays": [5, 300, 1800]}        these, and the last one from then on
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from zaqar_lite.domain.attempts import MAX_BACKOFF_STEPS, Backoff
from zaqar_lite.domain.errors import Conflict, Invalid
from zaqar_lite.domain.json_values import read_json
from zaqar_lite.domain.limits import MAX_CLAIM_COUNT, MAX_QUEUE_NAME, MIN_MESSAGE_TTL, Limits
from zaqar_lite.domain.models import (
    MAX_REDRIVEN,
    NO_LIMIT,
    Capability,
    DeadLetter,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.retry_policy import parse_policy

_QUEUE_NAME = re.compile(rf"(?!\.\.?\Z)[a-zA-Z0-9_\-.]{{1,{MAX_QUEUE_NAME}}}")
_PATH = re.compile(r"/((?:[^~/]|~[01])+)/((?:[^~/]|~[01])+)")

BACKOFF = "_retry_backoff"
_Jitter = Annotated[float, Meta(ge=0, le=1)]
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
_Ttl = Annotated[int, Meta(ge=MIN_MESSAGE_TTL)] | None
_Count = Annotated[int, Meta(ge=1, le=MAX_CLAIM_COUNT)] | None
_Retention = Annotated[int, Meta(ge=0, le=MAX_RETENTION)] | None


class _Reserved(Struct, rename=lambda name: f"_{name}"):
    """The keys that mean something; others that begin with `_` are stored with a warning."""

    max_messages_post_size: Annotated[int, Meta(ge=1)] | None = None
    default_message_ttl: _Ttl = None
    default_message_delay: Annotated[int, Meta(ge=0)] | None = None
    honour_delays: bool | None = None
    dead_letter_queue: str | None = None
    dead_letter_queue_messages_ttl: _Ttl = None
    max_claim_count: _Count = None
    max_failures: _Count = None
    retry_backoff: Any = None
    retry_policy: Any = None
    max_redrives: Annotated[int, Meta(ge=1, le=MAX_REDRIVEN)] | None = None
    done_retention: _Retention = None
    failed_retention: _Retention = None
    enable_encrypt_messages: bool | None = None
    notify_on_post: bool | None = None
    monitor: bool | None = None
    ttl_after_delay: bool | None = None
    flavor: str | None = None
    filter: str | None = None
    priority: str | None = None
    sqs: Any = None


RESERVED = frozenset(_Reserved.__struct_encode_fields__)


def is_queue_name(name: str) -> bool:
    """Tell whether `name` is a valid queue name: 1..64 of letters, digits, `_`, `-` and `.`.

    Not `.` and `..`: on its way a path that ends in them is another path.
    """
    return _QUEUE_NAME.fullmatch(name) is not None


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
    return with_defaults(visible(metadata), overlay(limits))


def with_defaults(metadata: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what is absent or falsy."""
    return {**metadata, **{key: defaults[key] for key in defaults if not metadata.get(key)}}


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
    for key in hidden(metadata):
        raise Invalid(f"{key} is no key for users: this server keeps its own value there.")
    read = read_json(metadata, _Reserved, "The metadata")
    for name, most in (
        ("default_message_ttl", limits.max_message_ttl),
        ("dead_letter_queue_messages_ttl", limits.max_message_ttl),
        ("default_message_delay", limits.max_message_delay),
        ("max_messages_post_size", limits.max_messages_post_size),
    ):
        if (value := getattr(read, name)) is not None and value > most:
            raise Invalid(f"_{name} must be at most {most}; it is {value}.")
    parse_backoff(read.retry_backoff, limits.max_claim_ttl)
    parse_policy(read.retry_policy)
    _check_dead_letter_queue(queue, read.dead_letter_queue)


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


def retries(queue: QueueRef, metadata: Mapping[str, Any]) -> RetryPolicy:
    """What becomes of a queue's messages that fail, by its stored record.

    Servers that did not know `_max_failures` and `_retry_backoff` stored whatever they were given.
    What this one would refuse counts as absent: else each request and each sweep would fail.
    """
    try:
        backoff = parse_backoff(metadata.get(BACKOFF), MAX_RETENTION)
    except Invalid:
        backoff = None
    return RetryPolicy(dead_letter_policy(queue, metadata), backoff)


def max_redrives(metadata: Mapping[str, Any]) -> int:
    """How often a letter of a dead-letter queue is redriven unless somebody insists."""
    stored = _stored_limit(metadata.get(MAX_REDRIVES))
    return DEFAULT_MAX_REDRIVES if stored == NO_LIMIT else stored


def _stored_limit(value: Any) -> int:  # noqa: ANN401 - any JSON
    """A stored limit; NO_LIMIT where it is none that this server would take."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 1 <= value <= MAX_CLAIM_COUNT else NO_LIMIT


def _check_dead_letter_queue(queue: QueueRef, name: str | None) -> None:
    if name is not None and not is_queue_name(name):
        raise Invalid(
            "_dead_letter_queue must be the name of a queue: 1 to 64 letters, digits, '_', '-' "
            "or '.'."
        )
    if name == queue.name:
        raise Invalid("_dead_letter_queue must be another queue than the queue itself.")


class _Growing(Struct, tag_field="type", forbid_unknown_fields=True):
    """Delays from the least to the most."""

    min: Annotated[int, Meta(ge=1)]
    max: int
    jitter: _Jitter = 0


class _Exponential(_Growing, tag="exponential"):
    """Each delay is twice the one before."""


class _Linear(_Growing, tag="linear"):
    """Each delay is longer than the one before by the least one."""


class _Listed(Struct, tag_field="type", tag="list", forbid_unknown_fields=True):
    """These delays."""

    delays: Annotated[
        list[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=MAX_BACKOFF_STEPS)
    ]
    jitter: _Jitter = 0


def parse_backoff(value: Any, longest: int) -> Backoff | None:  # noqa: ANN401 - any JSON
    """Read the attribute; None where it is absent. No delay is above `longest` seconds.

    Raises:
        Invalid: says what is wrong and what is allowed.
    """
    if value is None:
        return None
    read: _Exponential | _Linear | _Listed = read_json(
        value, _Exponential | _Linear | _Listed, f"{BACKOFF} (exponential, linear or list)"
    )
    delays = read.delays if isinstance(read, _Listed) else _growing(read)
    if max(delays) > longest:
        raise Invalid(f"{BACKOFF}: no delay may be above {longest} seconds.")
    return Backoff(tuple(delay * 1000 for delay in delays), read.jitter)


def _growing(read: _Growing) -> list[int]:
    if read.max < read.min:
        raise Invalid(f"{BACKOFF}: max must be at least min.")
    delays = [read.min]
    while delays[-1] < read.max:
        step = delays[-1] if isinstance(read, _Exponential) else read.min
        delays.append(min(delays[-1] + step, read.max))
        if len(delays) > MAX_BACKOFF_STEPS:
            raise Invalid(
                f"{BACKOFF}: a linear max may be at most {MAX_BACKOFF_STEPS} times its min."
            )
    return delays


class Operation(Struct, rename={"key": "path"}):
    """One step of a patch on a top-level key, which clients write with "/metadata/" before it."""

    op: Literal["add", "remove", "replace"]
    key: str
    value: Any = UNSET


def parse_patch(document: Any) -> Sequence[Operation]:  # noqa: ANN401 - any JSON
    """Read a patch document: an array of objects `{op, path, value?}`.

    Raises:
        Invalid: names the operation that is wrong and why.
    """
    operations: list[Operation] = read_json(document, list[Operation], "The patch")
    for index, operation in enumerate(operations):
        operation.key = _key_of(index, operation)
        if operation.op == "remove":
            operation.value = None
    return operations


def apply_patch(
    operations: Sequence[Operation], metadata: Mapping[str, Any], shown: Collection[str]
) -> dict[str, Any]:
    """Apply operations in order to a copy of `metadata`; `shown` are the overlay's keys.

    Raises:
        Conflict: a key to replace or remove is neither stored nor one that every queue shows.
    """
    patched = dict(metadata)
    for one in operations:
        op, key = one.op, one.key
        if op != "add" and key not in patched and key not in shown:
            raise Conflict(f"Can't {op} the metadata key {key!r}: the queue does not have it.")
        if op == "remove":
            patched.pop(key, None)
        else:
            patched[key] = one.value
    return patched


def _key_of(index: int, step: Operation) -> str:
    if step.op != "remove" and step.value is UNSET:
        raise Invalid(f"Operation {index}: {step.op!r} needs a 'value'.")
    found = _PATH.fullmatch(step.key)
    first, key = ("", "") if found is None else map(str.strip, found.groups())
    if not (first and key) or (step.op != "remove" and first.lower() != "metadata"):
        raise Invalid(
            f"Operation {index}: 'path' must be '/metadata/' and one key, in which '~0' stands for "
            "'~' and '~1' for '/'."
        )
    return key.replace("~1", "/").replace("~0", "~")
