"""What a word of a command may say: a number, KEY=VALUE, JSON, a time, a duration.

Durations are as people write them: 30s, 5m, 1h30m; plain numbers are seconds.
"""

import argparse
import datetime as dt
import json
import math
from collections.abc import Callable
from typing import Any

from zaqar_lite.durations import seconds_of


class UsageError(argparse.ArgumentTypeError):
    """The words of the command make no sense, alone or together; the text says which."""


def at_least(minimum: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers, for argparse."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum or (most is not None and number > most):
            end = "" if most is None else f" to {most}"
            raise UsageError(f"a whole number from {minimum}{end} is needed, not {text!r}")
        return number

    return read


def above_zero(text: str) -> float:
    """Read a number above 0, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise UsageError(f"a number above 0 is needed, not {text!r}")
    return number


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object, for argparse."""
    value = json_or_text(text)
    if not isinstance(value, dict):
        raise UsageError(f"a JSON object such as '{{\"name\": 5}}' is needed, not {text!r}")
    return value


def json_or_text(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what a text says in JSON, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise UsageError("it is nested too deeply to be JSON") from None


def pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE, for argparse."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"a key, = and a value are needed, not {text!r}")
    return key, value


class Pairs(argparse.Action):
    """An option of type `pair` that may be repeated; the result is a dict, None without."""

    def __call__(self, _: object, namespace: argparse.Namespace, found: Any, *__: object) -> None:  # noqa: ANN401 - as argparse has it
        """Add one pair."""
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **dict([found])})


def seconds(text: str) -> float:
    """Read a duration, for argparse."""
    try:
        return seconds_of(text)
    except ValueError:
        raise UsageError(f"a duration such as 30s, 5m, 1h30m is needed, not {text!r}") from None


def whole_seconds(text: str) -> int:
    """Read a duration that the server counts in whole seconds, for argparse."""
    found = seconds(text)
    if found != int(found):
        raise UsageError(f"whole seconds, such as 30s, 5m, 1h, are needed, not {text!r}")
    return int(found)


def seconds_above_zero(text: str) -> float:
    """Read a duration that is not nothing, for argparse."""
    found = seconds(text)
    if not found:
        raise UsageError(f"a duration above 0, such as 0.5s, 5m, 1h, is needed, not {text!r}")
    return found


def signed_seconds(text: str) -> int:
    """Read a duration that may be below 0, for argparse."""
    return -whole_seconds(text[1:]) if text.startswith("-") else whole_seconds(text)


def instant(text: str) -> dt.datetime:
    """Read a point in time, for argparse; one without a zone is in this machine's."""
    try:
        at = dt.datetime.fromisoformat(text)
        return at if at.tzinfo is not None else at.astimezone()
    except (ValueError, OverflowError):
        raise UsageError(f"a time such as 2030-12-24T18:00Z is needed, not {text!r}") from None


def flag(parser: "argparse._ActionsContainer", option: str, text: str) -> None:
    """Declare an option without a value."""
    parser.add_argument(option, action="store_true", help=text)


def repeated(
    parser: "argparse._ActionsContainer",
    option: str,
    metavar: str,
    text: str,
    **more: Any,  # noqa: ANN401 - as argparse has it
) -> None:
    """Declare an option that may be given several times; the result is a list."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=text, **more)


def number(
    parser: "argparse._ActionsContainer",
    option: str,
    text: str,
    *,
    least: int = 1,
    most: int | None = None,
    **more: Any,  # noqa: ANN401 - as argparse has it
) -> None:
    """Declare an option that takes a whole number."""
    parser.add_argument(option, type=at_least(least, most), metavar="N", help=text, **more)


def duration(
    parser: "argparse._ActionsContainer",
    option: str,
    text: str,
    *,
    default: float | None = None,
    read: Callable[[str], float] = whole_seconds,
) -> None:
    """Declare an option that takes a duration, such as 90s or 1h."""
    parser.add_argument(option, type=read, default=default, metavar="DURATION", help=text)
