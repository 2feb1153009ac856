"""Bodies to JSON: orjson where it is installed, else the standard library, with one outcome.

Beyond what JSON knows, a body may hold datetime, date and time (ISO 8601), UUID and Decimal (as
strings, so that no digit is lost), Enum (its value), dataclasses (objects of their fields) and
tuples. What is sent does not depend on the extras that are installed.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from typing import Any

from zaqar_lite.client.models import RawBody

Encoder = Callable[[Any], bytes | str]
"""Makes the JSON of a body; `Client(encoder=...)` replaces `dumps` by another."""


def plain(value: object) -> object:
    """Return a simpler value for one that JSON does not know.

    Your own encoder can call it for values that it does not handle itself.

    Raises:
        TypeError: there is none.
        ValueError: a Decimal that is not a number.
    """
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            message = f"a body can't hold Decimal({str(value)!r}), which JSON does not have"
            raise ValueError(message)
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return list(value)
    message = f"Object of type {type(value).__name__} is not JSON serializable"
    raise TypeError(message)


def _with_text_keys(value: object) -> object:
    """Return a value whose objects have keys that the standard library writes."""
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _with_text_keys(plain(value))


def _key(key: object) -> object:
    while not (key is None or isinstance(key, str | int | float)):
        key = plain(key)
        if isinstance(key, list | dict):
            message = "keys of an object must be strings, or what becomes one"
            raise TypeError(message)
    return key


def standard_dumps(value: object) -> bytes:
    """Return a body as JSON, by the standard library alone."""
    try:
        text = _json(value)
    except TypeError:
        text = _json(_with_text_keys(value))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = "a body can't hold half of a surrogate pair, which UTF-8 does not have"
        raise ValueError(message) from error


def _json(value: object) -> str:
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain
        )
    except ValueError as error:
        if "Out of range" not in str(error):
            raise  # a circle, or what `plain` refuses
        message = "a body can't hold NaN or an infinity, which JSON does not have"
        raise ValueError(message) from error


dumps: Callable[[object], bytes] = standard_dumps
loads: Callable[[bytes], Any] = json.loads

try:
    import orjson
except ModuleNotFoundError:
    pass
else:
    # Dataclasses and instants go to `plain`: orjson would leave out fields that begin with "_".
    _OPTIONS = (
        orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
    )

    def _orjson_dumps(value: object) -> bytes:
        try:
            encoded = orjson.dumps(value, default=plain, option=_OPTIONS)
        except orjson.JSONEncodeError:
            # The standard library takes a few things more (integers of any size) and says better
            # why it does not take the others.
            return standard_dumps(value)
        if b"null" in encoded:
            # orjson writes NaN as null; a body must never change silently, so the standard
            # library, which refuses NaN, has the last word wherever a null came out.
            standard_dumps(value)
        return encoded

    dumps, loads = _orjson_dumps, orjson.loads


def encode_body(body: object, encoder: Encoder | None = None) -> bytes:
    """Return a body's JSON; a `RawBody` is JSON already.

    Raises:
        TypeError: JSON cannot hold it; binary data must be put into a string (base64), and JSON
            text that is ready goes into a `RawBody`.
        ValueError: it contains NaN, an infinity, or half of a surrogate pair.
    """
    if isinstance(body, RawBody):
        return body
    if encoder is not None:
        encoded = encoder(body)
        return encoded.encode("utf-8") if isinstance(encoded, str) else encoded
    if isinstance(body, bytes | bytearray | memoryview):
        message = (
            "a body of bytes is ambiguous: use RawBody(...) for JSON text, base64 for binary data"
        )
        raise TypeError(message)
    return dumps(body)
