"""Ids and markers: a fixed-width position that sorts as text, and randomness that makes it unique.

A message id is 32 lower-case hex digits: 16 of the position it was given in the queue it was
posted to, and 16 (64 bits) of randomness, so that ids are unique across queues and across a queue
that was deleted and made again. A marker is the 16 digits of a position alone. Positions grow as
max(last + 1, now in microseconds), so that losing a counter never repeats one.
"""

import os
import re
import sys
from array import array
from collections.abc import Collection
from typing import NamedTuple

MAX_POSITION = (1 << 63) - 1
_MARKER = re.compile(r"[0-9a-f]{16}")
_MESSAGE_ID = re.compile(r"[0-9a-f]{32}")
_MESSAGE_IDS = re.compile(r"(?:[0-9a-f]{32},)*")


class Marker(NamedTuple):
    """A place in a queue: after `position`, or after the message `message_id` wherever it is now.

    `message_id` is set when the client gave a bare message id. The driver resolves it to the
    message's position in this queue; where that message is gone, `position` (the one inside the
    id) holds.
    """

    position: int
    message_id: str | None = None


def new_message_id(position: int) -> str:
    """Make the id of a message that is posted at `position`."""
    return f"{position:016x}{os.urandom(8).hex()}"


def new_message_ids(first: int, count: int) -> list[str]:
    """Make the ids of `count` messages that are posted at positions in a row."""
    if count < 2:
        return [new_message_id(first)][:count]
    positions, ids = array("Q", range(first, first + count)), array("Q", bytes(16 * count))
    if sys.byteorder == "little":
        positions.byteswap()
    ids[::2], ids[1::2] = positions, array("Q", os.urandom(8 * count))
    return ids.tobytes().hex(" ", 16).split(" ")


def position_of(message_id: str) -> int:
    """The position at which a message was posted, from its id.

    Raises:
        ValueError: `message_id` is not the id of a message.
    """
    return int(message_id[:16], 16)


def new_claim_id() -> str:
    """Make a claim id: 32 hex digits of 128 random bits."""
    return os.urandom(16).hex()


def format_marker(position: int) -> str:
    """Write a position as a marker."""
    return f"{position:016x}"


def parse_marker(text: str | None) -> Marker | None:
    """Read a marker or a bare message id; None for anything else (an empty page, not an error)."""
    if text is None:
        return None
    if _MARKER.fullmatch(text):
        return Marker(_bounded(text))
    if _MESSAGE_ID.fullmatch(text):
        return Marker(_bounded(text[:16]), text)
    return None


def is_message_id(text: str) -> bool:
    """Tell whether `text` has the form of a message id."""
    return _MESSAGE_ID.fullmatch(text) is not None


def are_message_ids(texts: Collection[str]) -> bool:
    """Tell whether all of them have the form of message ids; quicker than one after the other."""
    joined = ",".join([*texts, ""])  # as long as this only if none has a comma
    return len(joined) == 33 * len(texts) and _MESSAGE_IDS.fullmatch(joined) is not None


def is_claim_id(text: str) -> bool:
    """Tell whether `text` has the form of a claim id."""
    return _MESSAGE_ID.fullmatch(text) is not None


def _bounded(digits: str) -> int:
    return min(int(digits, 16), MAX_POSITION)
