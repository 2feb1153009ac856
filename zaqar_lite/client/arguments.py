"""Check what a program passes to the SDK: a wrong argument raises at once and says what was meant.

Without these checks a wrong argument would be taken for something else in silence: the letters of
an id for ids, a number for a retry policy, a text for a true value.
"""

import dataclasses
import datetime as dt
import functools
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, Union, get_args, get_origin

from zaqar_lite.client.models import NewMessage

I = TypeVar("I")  # noqa: E741 - items
T = TypeVar("T")
_WORDS = {
    str: "a string",
    bool: "True or False",
    Integral: "a whole number",
    Real: "a number",
    Callable: "a function",
    Sequence: "a list",
    Mapping: "a dict",
}


def whole(name: str, seconds: int) -> int:
    """Return a whole number of seconds: a fraction would have to be cut, which is too early.

    Raises:
        TypeError: it is not.
        ValueError: it is negative, which a normal queue ignores in a delay.
    """
    try:
        found = operator.index(seconds)
    except TypeError:
        message = f"{name} is a whole number of seconds, not {seconds!r}"
        raise TypeError(message) from None
    if found < 0:
        message = f"{name} can't be negative; it is {found}"
        raise ValueError(message)
    return found


def takes(name: str, value: object, kind: Any, what: str = "") -> None:  # noqa: ANN401 - as isinstance
    """Check that an argument is None or of this kind; `what` says which kind that is.

    Raises:
        TypeError: it is not. The text names the type and not the value, which may be a secret.
    """
    if value is not None and not isinstance(value, kind):
        message = f"{name} takes {what or _WORDS[kind]}, not {type(value).__name__}"
        raise TypeError(message)


def zoned(name: str, at: dt.datetime | None) -> None:
    """Check that an argument is None or a point in time with a time zone.

    Raises:
        TypeError: it is something else, such as a text.
        ValueError: it has no time zone.
    """
    takes(name, at, dt.datetime, "a datetime (datetime.fromisoformat reads one from a text)")
    if at is not None and at.tzinfo is None:
        message = f"{name} needs a time zone, for example datetime.now(timezone.utc)"
        raise ValueError(message)


def texts(name: str, items: Iterable[object], what: str = "strings") -> list[str]:
    """Return the strings of an argument that takes an iterable of them.

    Raises:
        TypeError: it is one string, whose letters would be taken for many, or something else.
    """
    if isinstance(items, str):
        message = f"{name} takes an iterable of {what}, and {items!r} is one: put it into a list"
        raise TypeError(message)
    takes(name, items, Iterable, f"an iterable of {what}")
    return [text(f"each of {name}", one) for one in items]


def text(name: str, value: object) -> str:
    """Return an argument that must be a string: the name of a queue, or an id.

    Raises:
        TypeError: it is something else; the text says which attribute was meant.
    """
    if not isinstance(value, str):
        message = f"{name} is a string{_instead(value)}"
        raise TypeError(message)
    return value


def several(items: I, method: str) -> I:
    """Return the items of a method that takes an iterable of messages.

    Raises:
        TypeError: they are one message: the keys of a dict or the letters of a string would be
            posted one by one.
    """
    if isinstance(items, str | bytes | bytearray | memoryview | Mapping | NewMessage):
        message = (
            f"{method} takes an iterable of messages, and this {type(items).__name__} is one "
            "message: use post, or put it into a list"
        )
        raise TypeError(message)
    return items


def options_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Make options of those arguments of a method (its `locals()`) that have a field's name."""
    fields: Mapping[str, object] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: given[name] for name in fields if name in given})


def check_fields(options: Any) -> None:  # noqa: ANN401 - any dataclass of options
    """Check that the fields of a dataclass hold what their annotations say.

    Raises:
        TypeError: the text names the field, and what it takes.
    """
    for name, kinds in _kinds(options.__class__):
        value = getattr(options, name)
        if not isinstance(value, kinds) or (Sequence in kinds and isinstance(value, str)):
            what = " or ".join(_WORDS[kind] for kind in kinds if kind in _WORDS)
            message = f"{name} takes {what}, not {type(value).__name__}"
            raise TypeError(message)


@functools.cache
def _kinds(options: type) -> Sequence[tuple[str, tuple[Any, ...]]]:
    """Return what each field may be; the numbers' abstract classes have numpy's among them."""
    numbers: dict[Any, Any] = {int: Integral, float: Real}
    found: list[tuple[str, tuple[Any, ...]]] = []
    for field in dataclasses.fields(options):
        is_union = isinstance(field.type, types.UnionType) or get_origin(field.type) is Union
        parts = get_args(field.type) if is_union else (field.type,)
        found.append((field.name, tuple(numbers.get(one, get_origin(one) or one) for one in parts)))
    return found


def _instead(value: object) -> str:
    """Say what a value is, and which attribute of it was probably meant."""
    said = f", not {type(value).__name__}"
    meant = next((one for one in ("name", "id") if isinstance(getattr(value, one, None), str)), "")
    return f"{said}: did you mean its `{meant}`?" if meant else said
