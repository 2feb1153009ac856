"""Groups of messages: a text that is kept as one of a message's headers."""

from zaqar_lite.domain.models import Message

GROUP_HEADER = "zaqar-group"
MAX_GROUP = 128
"""Bytes in UTF-8."""


def group_of(message: Message) -> str | None:
    """The group that a message was posted in."""
    return None if message.headers is None else message.headers.get(GROUP_HEADER)
