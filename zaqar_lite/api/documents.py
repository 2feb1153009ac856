"""Request bodies: strict JSON, checked field by field, message bodies left untouched.

A message's body is sliced out of the posted document (msgspec's Raw) and stored byte for byte.
The whole document is validated first: RFC 8259, UTF-8, no lone surrogates (orjson refuses them),
no deeper than 512, no integers outside 64 bits. Those two checks cost a scan each, and a second one
where there are many brackets, or 19 digits in a row.
"""

import re
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec.structs import replace

from zaqar_lite.api.request import Refused, Request, bad_body
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.groups import GROUP_HEADER, check_group
from zaqar_lite.domain.limits import INT64_MAX, INT64_MIN, MAX_BODY_DEPTH, MAX_DOCUMENT_DEPTH
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.post_validation import Draft

T = TypeVar("T")
_MALFORMED = "The request body could not be parsed: {}."
_LONGEST = 20  # digits and sign of a number of 64 bits
_NINETEEN_DIGITS = b"0" * 19  # of a number that may be outside 64 bits
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else 0 for byte in range(256))
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")

LARGE_POST = 32_768
"""Bytes: a larger post is read and answered in turns with other large ones."""
_GROUP = b"group"
ABSENT: Any = None
"""The default of a field in which a null is refused."""


class _Posted(Draft, frozen=True, gc=False):
    """One message of a post, as it was sent; a wrong type anywhere falls back to `_explain`."""

    body: msgspec.Raw
    ttl: int = ABSENT
    delay: int = ABSENT
    idempotency_key: str = ABSENT
    headers: dict[str, str] = ABSENT
    deliver_at: str = ABSENT
    group: str = ABSENT


class _PostDocument(msgspec.Struct):
    messages: list[_Posted]


_decode_post = msgspec.json.Decoder(_PostDocument).decode


def parse(body: bytes, *, deepest: int = MAX_DOCUMENT_DEPTH) -> Any:  # noqa: ANN401 - any JSON
    """Parse a strict JSON document whose top level is an object or an array.

    Raises:
        Refused: 400, it is not, and why.
    """
    document = _parse(body, deepest)
    if not isinstance(document, dict | list):
        raise bad_body(_MALFORMED.format("the document must be an object or an array"))
    return document


def parse_object(body: bytes, *, deepest: int = MAX_DOCUMENT_DEPTH) -> dict[str, Any]:
    """Parse a strict JSON document that is an object.

    Raises:
        Refused: 400, it is not, and why.
    """
    document = parse(body, deepest=deepest)
    if not isinstance(document, dict):
        raise bad_body("Document type not supported: it must be an object.")
    return document


def read_struct(request: Request, form: type[T], *, deepest: int = MAX_DOCUMENT_DEPTH) -> T:
    """Read the document of a request, a strict JSON object of a known form.

    Raises:
        Refused: 400, names the field that is wrong.
    """
    body = request.document
    parse_object(body, deepest=deepest)
    return decode(form, body)


def read_form(request: Request, form: type[T]) -> T:
    """Read the document of a request as a form; without a document it is as if it were `{}`.

    Raises:
        Refused: 400, it is no JSON object.
        Invalid: names the field that is wrong.
    """
    body = request.document or b"{}"
    parse_object(body)
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.ValidationError as exc:
        raise Invalid(f"{exc}.") from None


def decode(form: type[T], body: bytes) -> T:
    """Read a document of a known form; `parse_object` must have passed one that holds any JSON.

    Raises:
        Refused: 400, names the field that is wrong.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise bad_body(_MALFORMED.format(exc)) from None


async def read_messages(request: Request) -> Sequence[Draft]:
    """Read the messages of a post; a large one is read in turns with other large ones.

    Raises:
        Refused: 400, names the field and, by its index, the message that is wrong.
    """
    body = request.document
    is_large = request.size > LARGE_POST
    if is_large:
        await next_turn()
    document = _parse(body, MAX_BODY_DEPTH)
    if is_large:
        await next_turn()
    try:
        messages = _decode_post(body).messages
    except (msgspec.ValidationError, msgspec.DecodeError) as exc:
        raise _explain(document, exc) from exc
    if _GROUP in body:
        return [
            message if message.group is ABSENT else _in_group(index, message)
            for index, message in enumerate(messages)
        ]
    return messages


def _in_group(index: int, message: _Posted) -> Draft:
    """A message of a group, which is kept as one of its headers."""
    group, headers = message.group, message.headers or {}
    try:
        check_group(group)
    except Invalid as error:
        raise bad_body(f"Message {index}: {error}") from error
    if GROUP_HEADER in headers:
        raise bad_body(
            f"Message {index}: the header {GROUP_HEADER!r} is that of the group: give one of the "
            "two."
        )
    return replace(message, headers={**headers, GROUP_HEADER: group})


def _parse(body: bytes, deepest: int) -> Any:  # noqa: ANN401 - any JSON
    if not body:
        raise bad_body("The request needs a body: a JSON document.")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise bad_body(_MALFORMED.format(exc)) from None
    is_large = len(body) > deepest
    if is_large and body.count(b"[") + body.count(b"{") > deepest and _depth(body) > deepest:
        raise bad_body(_MALFORMED.format(f"it is nested deeper than {deepest}"))
    # Two passes in C, whatever the document holds: a search by an expression took 29 ms of the
    # largest post, and looking at one byte of 19 takes 6 ms where many of those are digits.
    if _NINETEEN_DIGITS in body.translate(_DIGITS) and _holds_large_integer(body):
        raise bad_body(_MALFORMED.format("an integer is outside 64 bits"))
    return document


def _without_strings(body: bytes) -> bytes:
    """A document that is known to be valid, without its strings.

    Every step here and in what calls it is one pass in C: a document of brackets, escapes or
    numbers alone would hold up everybody for a tenth of a second otherwise.
    """
    if b"\\" in body:  # then what is left of `"` begins or ends a string
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(body.split(b'"')[::2])


def _depth(body: bytes) -> int:
    """The nesting of a document that is known to be valid."""
    steps = array("b", _without_strings(body).translate(_STEPS, _NOT_BRACKETS))
    return max(accumulate(steps))


def _holds_large_integer(body: bytes) -> bool:
    """Tell whether a document that is known to be valid holds an integer outside 64 bits."""
    return any(
        len(number) > _LONGEST or not INT64_MIN <= int(number) <= INT64_MAX
        for number in _LONG_INTEGER.findall(_without_strings(body))
    )


def _explain(document: Any, error: Exception) -> Refused:  # noqa: ANN401, PLR0911 - any JSON
    """Say which field of a post is wrong, in upstream's words where it has them."""
    if not isinstance(document, dict):
        return bad_body("Document type not supported: it must be an object.")
    if "messages" not in document:
        return bad_body('Missing "messages" field.')
    messages = document["messages"]
    if not isinstance(messages, list):
        return bad_body('The value of the "messages" field must be a list.')
    for index, message in enumerate(messages):
        where = f" (message {index})"
        if not isinstance(message, dict):
            return bad_body(f"A message must be an object{where}.")
        if "body" not in message:
            return bad_body(f'Missing "body" field{where}.')
        for name in ("ttl", "delay"):
            if type(message.get(name, 0)) is not int:
                return bad_body(f'The value of the "{name}" field must be a int{where}.')
    return bad_body(_MALFORMED.format(error))
