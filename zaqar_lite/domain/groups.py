"""Groups of messages: a text that is kept as one of a message's headers, and indexed by stores."""

from collections.abc import Mapping

from zaqar_lite.domain.errors import Invalid

GROUP_HEADER = "zaqar-group"
MAX_GROUP = 128
"""Bytes in UTF-8."""


def check_group(group: str) -> None:
    """Refuse a text that no group can have.

    Raises:
        Invalid: it is empty, or too long.
    """
    if not 1 <= len(group.encode()) <= MAX_GROUP:
        raise Invalid(f"A group has 1 to {MAX_GROUP} bytes (UTF-8).")


def group_of(headers: Mapping[str, str] | None) -> str | None:
    """The group that a message with these headers is in; a text of another length is none."""
    group = None if headers is None else headers.get(GROUP_HEADER)
    if not group or len(group.encode(errors="surrogatepass")) > MAX_GROUP:
        return None
    return group
