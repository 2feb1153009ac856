"""Attributes of messages, which the product keeps as headers, and their MD5.

An attribute of the type String is the header of its name. One of another type is the header
`NAME:TYPE`, where no name of SQS has a colon: `price:Number`, or `image:Binary` with base64.
"""

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from hashlib import md5

from msgspec import Struct

from zaqar_lite.domain.groups import GROUP_HEADER
from zaqar_lite.sqs.errors import SqsError, invalid, unsupported

MAX_ATTRIBUTES = 10
TRACE = "AWSTraceHeader"
TRACE_HEADER = f"{TRACE}:System"
"""The header that keeps the one system attribute which a sender may set."""
_NAME = re.compile(
    rf"(?!(?i:aws\.|amazon\.)|{GROUP_HEADER}$|\.)(?!.*\.\.)[A-Za-z0-9_.-]{{1,256}}(?<!\.)"
)
_GROUP_ID = re.compile(r"[!-~]{1,128}")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f\x7f]{1,240})?")
_NUMBER = re.compile(r"[+-]?(\d{1,38}(\.\d{0,38})?|\.\d{1,38})([eE][+-]?\d{1,3})?", re.ASCII)
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STRING, _BINARY = "String", "Binary"


class Attribute(Struct, rename="pascal", omit_defaults=True):
    """An attribute of a message; a binary value is base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[str] | None = None


def check_text(text: str) -> None:
    """Refuse characters that SQS does not take.

    Raises:
        SqsError: InvalidMessageContents.
    """
    if not text.isprintable() and (found := _NOT_ALLOWED.search(text)) is not None:
        wrong = f"The character U+{ord(found[0]):04X} is not allowed in a message."
        raise SqsError("InvalidMessageContents", wrong)


def headers_of(
    attributes: Mapping[str, Attribute] | None,
    system: Mapping[str, Attribute] | None,
    group: str | None,
) -> dict[str, str] | None:
    """The headers that keep the attributes of a message, and its group; None where it has neither.

    Raises:
        SqsError: one of them is wrong.
    """
    if not (attributes or system) and group is None:
        return None
    headers = {}
    if attributes and len(attributes) > MAX_ATTRIBUTES:
        raise invalid(f"A message has up to {MAX_ATTRIBUTES} attributes.")
    for name, one in (attributes or {}).items():
        header = name if one.data_type == _STRING else f"{name}:{one.data_type}"
        headers[header] = _checked(name, one)
    for name, one in (system or {}).items():
        if name != TRACE or one.data_type != _STRING:
            raise invalid(f"The only message system attribute is {TRACE}, a String.")
        headers[TRACE_HEADER] = _checked(name, one)
    if group is not None:
        if _GROUP_ID.fullmatch(group) is None:
            raise invalid("MessageGroupId has 1 to 128 letters, digits and punctuation marks.")
        headers[GROUP_HEADER] = group
    return headers


def _checked(name: str, given: Attribute) -> str:
    """The value of an attribute that is as it must be."""
    kind, shown = _TYPE.fullmatch(given.data_type), f"The message attribute {name[:256]!r}"
    if _NAME.fullmatch(name) is None:
        raise invalid(f"{shown} has a name that is reserved, or is not allowed.")
    if given.string_list_values or given.binary_list_values:
        raise unsupported("Message attribute list values are not supported.")
    if kind is None:
        raise invalid(f"{shown} must be of the type String, Number or Binary, or TYPE.LABEL.")
    value, other = given.string_value, given.binary_value
    if kind[1] == _BINARY:
        value, other = other, value
    if not value or other is not None:
        raise invalid(f"{shown} must have a value, of its type alone.")
    if kind[1] == _STRING:
        check_text(value)
    elif not (_is_base64(value) if kind[1] == _BINARY else _NUMBER.fullmatch(value)):
        raise invalid(f"{shown} has a value that is none of its type.")
    return value


def _is_base64(value: str) -> bool:
    try:
        b64decode(value, validate=True)
    except ValueError:
        return False
    return True


def attributes_of(headers: Mapping[str, str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The attributes in headers that a receiver asks for: by name, by prefix (`foo.*`), or all.

    They are as SQS shows them; a header that can't be one is left out.
    """
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    found = {}
    for header, value in headers.items():
        name, _, kind = header.partition(":")
        kind = kind or _STRING
        is_asked_for = name in names or "All" in names or name.startswith(prefixes)
        if not (is_asked_for and value and _NAME.fullmatch(name) and _TYPE.fullmatch(kind)):
            continue
        if not kind.startswith(_BINARY):
            found[name] = {"DataType": kind, "StringValue": value}
        elif _is_base64(value):
            found[name] = {"DataType": kind, "BinaryValue": value}
    return found


def md5_of(text: str) -> str:
    """The MD5 of a text, which clients compare to find damage."""
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Mapping[str, str]]) -> str:
    """The MD5 of attributes, over their sorted names, types and values, each behind its length."""
    digest = md5(usedforsecurity=False)
    for name, one in sorted(attributes.items()):
        kind = one["DataType"]
        if kind.startswith(_BINARY):
            mark, value = b"\x02", b64decode(one["BinaryValue"])
        else:
            mark, value = b"\x01", one["StringValue"].encode()
        digest.update(_sized(name.encode()) + _sized(kind.encode()) + mark + _sized(value))
    return digest.hexdigest()


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text
