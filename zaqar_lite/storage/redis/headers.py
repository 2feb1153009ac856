"""The headers of a message as bytes in its record (`codec.py` has the layout), its group first."""

import json
from collections.abc import Mapping

from zaqar_lite.domain.groups import GROUP_HEADER, group_of

HAS_PRIORITY, _HAS_HEADERS, _HAS_GROUP = 1, 2, 4


def pack_group(group: str | None) -> bytes:
    """Write a group as scripts take it; nothing for none, and what is in no index for no group."""
    if group is None:
        return b""
    return sized(group, 1) if group_of({GROUP_HEADER: group}) else b"\0"


def pack_headers(headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Write headers, and tell the flags of a record that has them."""
    group = group_of(headers)
    if group is None:
        return _HAS_HEADERS, json.dumps(dict(headers)).encode()
    others = {name: text for name, text in headers.items() if name != GROUP_HEADER}
    if not others:
        return _HAS_GROUP, sized(group, 1)
    return _HAS_GROUP | _HAS_HEADERS, sized(group, 1) + json.dumps(others).encode()


def read_headers(extra: bytes, flags: int) -> dict[str, str]:
    """Read what is between the client and the body of a record."""
    extra = extra[:-4] if flags & HAS_PRIORITY else extra
    own: dict[str, str] = {}
    if flags & _HAS_GROUP:
        own[GROUP_HEADER] = extra[1 : 1 + extra[0]].decode("utf-8", "surrogatepass")
        extra = extra[1 + extra[0] :]
    return json.loads(extra) | own if flags & _HAS_HEADERS else own


def sized(text: str, width: int) -> bytes:
    """Write a text behind its length in so many bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(width, "big") + data
