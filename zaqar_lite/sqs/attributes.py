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
"""Attributes of a message."""
TRACE = "AWSTraceHeader"
TRACE_HEADER = f"{TRACE}:System"
"""The header that keeps the one system attribute which a sender may set."""
_NAME = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_RESERVED = ("aws.", "amazon.")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f\x7f]{1,240})?")
_NUMBER = re.compile(r"[+-]?(\d{1,38}(\.\d{0,38})?|\.\d{1,38})([eE][+-]?\d{1,3})?")
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STRING, _BINARY = "String", "Binary"


class Attribute(Struct, rename="pascal"):
    """An attribute of a message; a binary value is base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[str] | None = None

    def as_document(self) -> Mapping[str, str]:
        """The attribute as SQS shows it."""
        return {
            "DataType": self.data_type,
            "StringValue": self.string_value or "",
            "BinaryValue": self.binary_value or "",
        }


def check_text(text: str) -> None:
    """Refuse characters that SQS does not take.

    Raises:
        SqsError: InvalidMessageContents.
    """
    if (found := _NOT_ALLOWED.search(text)) is not None:
        raise SqsError(
            "InvalidMessageContents",
            f"Invalid character U+{ord(found[0]):04X} was found. Allowed are #x9 | #xA | #xD | "
            "#x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.",
        )


def headers_of(
    attributes: Mapping[str, Attribute] | None, system: Mapping[str, Attribute] | None
) -> dict[str, str]:
    """The headers that keep the attributes of a message.

    Raises:
        SqsError: an attribute is wrong.
    """
    attributes = attributes or {}
    if len(attributes) > MAX_ATTRIBUTES:
        raise invalid(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{MAX_ATTRIBUTES}]."
        )
    headers = {}
    for name, attribute in attributes.items():
        value = _checked(name, attribute)
        headers[name if attribute.data_type == _STRING else f"{name}:{attribute.data_type}"] = value
    for name, attribute in (system or {}).items():
        if name != TRACE or attribute.data_type != _STRING:
            raise invalid(f"The only message system attribute is {TRACE}, a String.")
        headers[TRACE_HEADER] = _checked(name, attribute)
    return headers


def _checked(name: str, attribute: Attribute) -> str:
    """The value of an attribute that is as it must be."""
    if _NAME.fullmatch(name) is None or name.lower().startswith(_RESERVED) or name == GROUP_HEADER:
        raise invalid(
            f"The message attribute name {name[:256]!r} is invalid: it has 1 to 256 letters, "
            "digits, '_', '-' and '.', none of these first, last or twice in a row being '.', and "
            "does not begin with AWS. or Amazon."
        )
    if attribute.string_list_values or attribute.binary_list_values:
        raise unsupported("Message attribute list values are not supported.")
    kind = _TYPE.fullmatch(attribute.data_type)
    if kind is None:
        raise invalid(
            f"The type of the message attribute {name!r} must be String, Number or Binary, with a "
            "label behind a '.' or without."
        )
    is_binary = kind[1] == _BINARY
    value = attribute.binary_value if is_binary else attribute.string_value
    if not value or (attribute.string_value if is_binary else attribute.binary_value) is not None:
        raise invalid(f"The message attribute {name!r} must have a value, of its type alone.")
    if is_binary:
        if not _is_base64(value):
            raise invalid(f"The value of the message attribute {name!r} is no base64.")
    elif kind[1] == "Number" and _NUMBER.fullmatch(value) is None:
        raise invalid(f"Can't cast the value of message attribute {name!r} to a number.")
    else:
        check_text(value)
    return value


def _is_base64(value: str) -> bool:
    try:
        b64decode(value, validate=True)
    except ValueError:
        return False
    return True


def attributes_of(headers: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
    """The attributes that headers hold, as SQS shows them; what can't be one is left out."""
    found = {}
    for header, value in (headers or {}).items():
        name, _, kind = header.partition(":")
        kind = kind or _STRING
        if not (value and _NAME.fullmatch(name) and _TYPE.fullmatch(kind)) or name == GROUP_HEADER:
            continue
        if not kind.startswith(_BINARY):
            found[name] = {"DataType": kind, "StringValue": value}
        elif _is_base64(value):
            found[name] = {"DataType": kind, "BinaryValue": value}
    return found


def chosen(
    attributes: Mapping[str, dict[str, str]], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The attributes that a receiver asked for: by name, by prefix (`foo.*`), or all."""
    if "All" in names or ".*" in names:
        return dict(attributes)
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return {
        name: value
        for name, value in attributes.items()
        if name in names or (prefixes and name.startswith(prefixes))
    }


def md5_of(text: str) -> str:
    """The MD5 of a text, which clients compare to find damage."""
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Mapping[str, str]]) -> str:
    """The MD5 of attributes, over their sorted names, types and values, each behind its length."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        kind = attribute["DataType"]
        if kind.startswith(_BINARY):
            mark, value = b"\x02", b64decode(attribute["BinaryValue"])
        else:
            mark, value = b"\x01", attribute["StringValue"].encode()
        digest.update(_sized(name.encode()) + _sized(kind.encode()) + mark + _sized(value))
    return digest.hexdigest()


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text
