"""The options of a queue by name and type, and the check of reserved metadata keys."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from zaqar_lite.client.arguments import check_fields, takes
from zaqar_lite.client.errors import QueueExists
from zaqar_lite.client.serialization import dumps, loads


def _option(key: str) -> Any:  # noqa: ANN401 - the default of every option
    """Return a field with its key in the metadata; None by default."""
    return dataclasses.field(default=None, metadata={"key": key})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What a queue does; None leaves the server's default, or what the queue has.

    Attributes:
        message_ttl: seconds that a message lives where its post says nothing.
        delay: seconds until a message can be claimed where its post says nothing. Above 0 it makes
            the queue a delayed queue, the only kind that honours a message's own delay.
        honour_delays: whether the queue is a delayed queue also where `delay` is 0.
        max_post_size: bytes of one post, at most.
        max_claims: how often a message is handed out before it is a dead letter.
        max_failures: how often a message may fail before it is a dead letter.
        retry_backoff: how long a message waits after each failure, such as
            `{"type": "exponential", "min": 1, "max": 3600}`.
        dead_letter_queue: where dead letters go.
        dead_letter_ttl: seconds that a dead letter lives there.
        done_retention: seconds that deleted messages stay in the queue's history.
        failed_retention: seconds that failed messages stay in the queue's history.
        filter: a condition; the queue gets copies of the messages of other queues that meet it.
        priority: rules that give messages a priority by their headers.
        notify_on_post: whether a delayed message is sent to subscribers when it is posted, instead
            of when it is due.
        max_redrives: how often a job may put a letter of this queue back (3), unless it is forced.
        ttl_after_delay: whether ttls count from the end of the delay.
        metadata: keys of your own.
    """

    message_ttl: int | None = _option("_default_message_ttl")
    delay: int | None = _option("_default_message_delay")
    honour_delays: bool | None = _option("_honour_delays")
    max_post_size: int | None = _option("_max_messages_post_size")
    max_claims: int | None = _option("_max_claim_count")
    max_failures: int | None = _option("_max_failures")
    retry_backoff: Mapping[str, Any] | None = _option("_retry_backoff")
    dead_letter_queue: str | None = _option("_dead_letter_queue")
    dead_letter_ttl: int | None = _option("_dead_letter_queue_messages_ttl")
    done_retention: int | None = _option("_done_retention")
    failed_retention: int | None = _option("_failed_retention")
    filter: str | None = _option("_filter")
    priority: str | None = _option("_priority")
    notify_on_post: bool | None = _option("_notify_on_post")
    max_redrives: int | None = _option("_max_redrives")
    ttl_after_delay: bool | None = _option("_ttl_after_delay")
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise TypeError for a field that holds what it does not take."""
        check_fields(self)

    def as_metadata(self) -> dict[str, Any]:
        """Return the options as the keys that the server knows."""
        given = {key: getattr(self, name) for name, key in KEYS.items()}
        return {
            **self.metadata,
            **{key: value for key, value in given.items() if value is not None},
        }


KEYS: Mapping[str, str] = {
    one.name: one.metadata["key"] for one in dataclasses.fields(QueueOptions) if one.metadata
}
"""The keys in the metadata, by the fields of `QueueOptions`."""
RESERVED = frozenset(
    {*KEYS.values(), "_enable_encrypt_messages", "_flavor", "_monitor", "_retry_policy", "_sqs"}
)


class Ensured(enum.StrEnum):
    """What `ensure_queue` did."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


def checked(options: "Mapping[str, Any] | QueueOptions") -> dict[str, Any]:
    """Return the metadata to send.

    Raises:
        TypeError: it is neither a dict nor `QueueOptions`.
        ValueError: a key begins with `_`, as the server's own do, but is none of them.
    """
    takes("metadata", options, Mapping | QueueOptions, "a dict, or QueueOptions(...)")
    metadata = options.as_metadata() if isinstance(options, QueueOptions) else dict(options)
    for key in metadata:
        if key.startswith("_") and key not in RESERVED:
            message = f"{key!r} is not an option of a queue{_nearest(key)}"
            raise ValueError(message)
    return metadata


def differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the wanted metadata a queue does not have."""
    sent: dict[str, Any] = loads(dumps(dict(wanted)))
    return {key: value for key, value in sent.items() if found.get(key) != value}


def exists(queue: str, different: Mapping[str, Any], found: Mapping[str, Any]) -> QueueExists:
    """Make the error for a queue that is there with other options."""
    facts = [
        f"{key} {found[key]!r}, not {wanted!r}"
        if found.get(key) is not None
        else f"no {key}, not {wanted!r}"
        for key, wanted in different.items()
    ]
    return QueueExists("The queue exists with other options", f"{queue} has {', '.join(facts)}")


def _nearest(key: str) -> str:
    import difflib  # noqa: PLC0415 - only for the message

    near = difflib.get_close_matches(key, sorted(RESERVED), 1, 0.5)
    known = ", ".join(sorted(RESERVED))
    return f": did you mean {near[0]!r}?" if near else f"; there are {known}"
