"""The settings of a queue as a form: each with its meaning, and what was changed as a patch."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Whole = Callable[[str, str], int]
REMOVED = object()
"""The value of a setting that is taken away."""
PREFIX, SHOWN = "set.", "was."
"""What the names of the form's fields begin with, before the key; and of what they showed."""


class Field(NamedTuple):
    """A setting: its key, what it is called, what it means, and what is written into it."""

    key: str
    label: str
    hint: str
    kind: str = "number"


FIELDS = (
    Field(
        "_default_message_ttl", "Messages live for", "Seconds, for posts that do not say how long."
    ),
    Field(
        "_default_message_delay",
        "Messages wait for",
        "Seconds, for posts that do not say how long. With 0 no message can be delayed. A change "
        "concerns only later posts.",
    ),
    Field("_max_messages_post_size", "Largest post", "Bytes of one request that posts messages."),
    Field(
        "_max_failures",
        "Most failures",
        "A message that has failed so often becomes a dead letter. Empty: no limit.",
    ),
    Field(
        "_max_claim_count",
        "Most claims",
        "A message that was claimed so often becomes a dead letter, whether it failed or not. "
        "Empty: no limit.",
    ),
    Field(
        "_dead_letter_queue",
        "Dead letters go to",
        "A queue of this project, created when it is needed. Without it the two limits do nothing.",
        "text",
    ),
    Field(
        "_dead_letter_queue_messages_ttl",
        "Dead letters live for",
        "Seconds from when they became dead letters. Empty: as long as they would have lived.",
    ),
    Field("_monitor", "Show in metrics", "Metrics name this queue.", "checkbox"),
)
"""The settings that most queues need; the others are written as JSON."""


def changes(fields: Mapping[str, str], now: Mapping[str, Any], whole: Whole) -> dict[str, Any]:
    """The settings in the form that a queue does not have; REMOVED for an empty field.

    A field that still has the value that it showed is left out, because another user may have
    changed the setting meanwhile. `whole` reads the number in a field, or refuses it.
    """
    found: dict[str, Any] = {}
    for key, label, _, kind in FIELDS:
        text, before = fields.get(PREFIX + key, "").strip(), now.get(key)
        if text == fields.get(SHOWN + key):
            continue
        wanted: Any = text or None
        if kind == "checkbox":
            wanted = bool(text)
        elif text and kind == "number":
            wanted = whole(label, text)
        is_nothing = wanted is None or wanted is False
        if wanted != before and not (is_nothing and not before):
            found[key] = REMOVED if wanted is None else wanted
    return found


def patch(wanted: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The patch that gives a queue these settings."""
    found: list[dict[str, Any]] = []
    for key, value in wanted.items():
        path = f"/metadata/{key.replace('~', '~0').replace('/', '~1')}"
        if value is REMOVED:
            found.append({"op": "remove", "path": path})
        elif now.get(key) != value:
            found.append({"op": "replace" if key in now else "add", "path": path, "value": value})
    return found
