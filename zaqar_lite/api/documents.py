"""Request bodies: strict JSON, checked field by field, message bodies left untouched.

A message's body is sliced out of the posted document (msgspec's Raw) and stored byte for byte.
The whole document is validated first: RFC 8259, UTF-8, no lone surrogates, no deeper than 512, no
numbers outside 64 bits. msgspec and orjson both do the first; only orjson looks at the bytes of
strings, and at how large a number is. The last two checks cost a scan each, and a second one where
there are many brackets, or 19 digits in a row.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isinf
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec.structs import replace

from zaqar_lite.api.request import Refused, Request, bad_body
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.groups import GROUP_HEADER, check_group
from zaqar_lite.domain.limits import INT64_MAX, INT64_MIN, MAX_BODY_DEPTH, MAX_DOCUMENT_DEPTH
from zaqar_lite.domain.yielding import in_steps, next_turn
from zaqar_lite.service.post_validation import Draft

T = TypeVar("T")
_MALFORMED = "The request body could not be parsed: {}."
_UNKNOWN = re.compile("Object contains unknown field `[^`]*`")
_LONGEST = 20  # digits and sign of a number of 64 bits
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_RUN = b"0" * 19
"""What an integer outside 64 bits holds by `_DIGITS`; a float has three digits behind its e."""
_find_suspect = re.compile(rb"0(?:0{18}|e\+?000)").search
"""Finds either in a short document: in a long one of digits this is three times as slow."""
_LONG_NUMBER = re.compile(rb"(?<![0-9.eE+-])-?(?:[0-9.]{19,}[0-9.eE+-]*|[0-9.]+[eE][+]?[0-9]{3,})")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")

_LARGE_POST = 32_768
"""Bytes: a larger post is read in turns with other large ones."""
_BRACKETS = 10_000
"""Brackets whose nesting is found in one step: about 0.3 ms."""
_SEARCHED = 8_192
"""Bytes in which too large numbers are searched in one step: up to 0.4 ms."""
_GROUP = b"group"
ABSENT: Any = None
"""The default of a field in which a null is refused."""


class _Posted(Draft, frozen=True, gc=False):
    """One message of a post, as it was sent; `_EXPLAINED` tells of a wrong type anywhere."""

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
_NO_MESSAGES = r"Expected `object`, got `\w+`|Object missing required field `messages`"
_ONE = r" - at `\$\.messages\[(\d+)\]"
_EXPLAINED = {
    r".* - at `\$\.messages`": 'The value of the "messages" field must be a list.',
    rf"Expected `object`, .*{_ONE}`": r"A message must be an object (message \1).",
    rf"Object missing required field `body`{_ONE}`": r'Missing "body" field (message \1).',
    rf"Expected `int`, .*{_ONE}\.(ttl|delay)`": (
        r'The value of the "\2" field must be a int (message \1).'
    ),
}
"""What msgspec says of a post, and what its client is told: upstream's words."""


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
    parse_object(request.document, deepest=deepest)
    return decode(form, request.document)


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
        why = str(exc)
        if _UNKNOWN.fullmatch(why):  # of the form itself, not of what is in it
            why += f"; there are {', '.join(getattr(form, '__struct_encode_fields__', ()))}"
        raise bad_body(_MALFORMED.format(why)) from None


async def read_messages(request: Request) -> Sequence[Draft]:
    """Read the messages of a post; a large one is read in turns with other large ones.

    Raises:
        Refused, Invalid: 400, names the field and, by its index, the message that is wrong.
    """
    body = request.document
    is_large = request.size > _LARGE_POST
    if is_large:
        await next_turn()
    try:
        messages = _decode_post(body).messages
        if not body.isascii():
            body.decode()  # bodies are kept as they are
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _explain(body, exc) from exc
    if is_large:
        await next_turn()
    # A shorter body can't be nested too deeply, so only its numbers are looked at.
    if len(body) > MAX_BODY_DEPTH or _find_suspect(body.translate(_DIGITS)):
        for _ in _check(body, MAX_BODY_DEPTH):
            await next_turn()
    if _GROUP not in body:
        return messages
    grouped: list[Draft] = []
    async for first, some in in_steps(messages):
        grouped += [
            message if message.group is ABSENT else _in_group(index, message)
            for index, message in enumerate(some, first)
        ]
    return grouped


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
    for _ in _check(body, deepest):
        pass
    return document


def _too_deep(deepest: int) -> Refused:
    return bad_body(_MALFORMED.format(f"it is nested deeper than {deepest}"))


def _check(body: bytes, deepest: int) -> Iterator[None]:
    """Refuse a document that is known to be valid where it is too deep, or a number too large.

    A few passes in C tell most documents from others. The nesting is counted, and numbers are
    searched by an expression, in steps of up to 0.4 ms, between which others may go on; in the
    largest post they take 12 ms. What is searched in one step ends with a comma.
    """
    if len(body) > deepest and body.count(b"[") + body.count(b"{") > deepest:
        yield
        for depth in _depths(body):
            if depth > deepest:
                raise _too_deep(deepest)
            yield
    digits = body.translate(_DIGITS)
    if not (_LONG_RUN in digits or b"0e000" in digits or b"0e+000" in digits):
        return
    text, end = _without_strings(body), 0
    while end < len(text):
        start, end = end, text.find(b",", end + _SEARCHED) + 1 or len(text)
        if any(map(_is_too_large, _LONG_NUMBER.findall(text, start, end))):
            raise bad_body(_MALFORMED.format("a number is outside 64 bits"))
        yield


def _is_too_large(number: bytes) -> bool:
    if number.strip(b"-").isdigit():
        return len(number) > _LONGEST or not INT64_MIN <= int(number) <= INT64_MAX
    return isinf(float(number))


def _without_strings(body: bytes) -> bytes:
    """A document that is known to be valid, without its strings.

    Every step here and in what calls it is one pass in C: a document of brackets, escapes or
    numbers alone would hold up everybody for a tenth of a second otherwise.
    """
    if b"\\" in body:  # then what is left of `"` begins or ends a string
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(body.split(b'"')[::2])


def _depths(body: bytes) -> Iterator[int]:
    """How deep each part of a valid document is at most; nothing where it has no brackets."""
    steps = array("b", _without_strings(body).translate(_STEPS, _NOT_BRACKETS))
    depth = 0
    for first in range(0, len(steps), _BRACKETS):
        depths = list(accumulate(steps[first : first + _BRACKETS], initial=depth))
        depth = depths[-1]
        yield max(depths)


def _explain(body: bytes, error: Exception) -> Refused | Invalid:
    """Say what is wrong of a post, in upstream's words where it has them."""
    if isinstance(error, RecursionError):
        return _too_deep(MAX_BODY_DEPTH)
    if not isinstance(error, msgspec.ValidationError):
        _parse(body, MAX_BODY_DEPTH)  # tells where it is no JSON
    if re.fullmatch(_NO_MESSAGES, str(error)):
        return Invalid("No messages were found in the request body.")
    for said, told in _EXPLAINED.items():
        if (found := re.fullmatch(said, str(error))) is not None:
            return bad_body(found.expand(told))
    return bad_body(_MALFORMED.format(error))
