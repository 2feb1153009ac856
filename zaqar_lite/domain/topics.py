"""Topics: what is posted to one goes to its subscriptions, and nothing is kept.

Inside, a topic is a reference like a queue's, by a name that no queue can have. So subscriptions,
deliveries and signatures need not know what they belong to.
"""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import is_queue_name, overlay
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import check_subscriber

KIND = "topic"
MAX_TOPICS = 1_000
"""Topics of a project."""
QUEUE_SCHEME = "queue:"
"""What the subscriber of a topic begins with that is a queue of the same project."""
_PREFIX = "~topic."
_SHOWN = ("_max_messages_post_size", "_default_message_ttl", "_default_message_delay")


def topic_ref(project: str, name: str) -> QueueRef:
    """The reference of a topic."""
    return QueueRef(project, _PREFIX + name)


def is_topic(queue: QueueRef) -> bool:
    """Tell whether a reference is a topic's."""
    return queue.name.startswith(_PREFIX)


def name_of(queue: QueueRef) -> str:
    """The name of a queue or of a topic, as users know it."""
    return queue.name.removeprefix(_PREFIX)


def path_of(queue: QueueRef) -> str:
    """The path of a queue or of a topic."""
    return f"/v2/{'topics' if is_topic(queue) else 'queues'}/{name_of(queue)}"


def topic_overlay(limits: Limits) -> dict[str, Any]:
    """The reserved attributes that every topic shows, with the defaults of this server."""
    shown = overlay(limits)
    return {name: shown[name] for name in _SHOWN}


def queue_in(subscriber: str | None) -> str | None:
    """The name of the queue that a subscriber is; None when it is no queue."""
    if subscriber is None or not subscriber.startswith(QUEUE_SCHEME):
        return None
    return subscriber[len(QUEUE_SCHEME) :]


def check_subscription(
    queue: QueueRef,
    subscriber: str | None,
    options: Mapping[str, object] | None,
    refused: Mapping[str, str],
) -> None:
    """Refuse a subscriber or options that a queue or topic cannot have; None is not checked.

    `refused` says of schemes why this server does not deliver to them.

    Raises:
        Invalid: names what is wrong.
    """
    if is_topic(queue) and (options or {}).get("ordered"):
        raise Invalid(
            "options.ordered must be false for a topic: let a queue subscribe (queue:NAME), "
            "and an ordered subscription to that queue."
        )
    target = queue_in(subscriber)
    if is_topic(queue) and target is not None:
        if not is_queue_name(target):
            raise Invalid(
                "A subscriber that is a queue is written queue:NAME: 1 to 64 letters, digits, '_', "
                "'-' and '.'."
            )
    elif subscriber is not None:
        check_subscriber(subscriber, refused)
    for name in ("dead_letter_queue", "events_queue"):
        if options is not None and options.get(name) == queue.name:
            raise Invalid(f"options.{name} must be another queue than the queue itself.")
