"""The words of a routing key: how a delay and a destination are written, and what is refused."""

import math
import re
from fractions import Fraction

from zaqar_lite.domain.errors import Invalid

MAX_KEY_BYTES = 255  # AMQP 0-9-1: a routing key is a short string

_WORDS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)


def units(delay: float, unit_ms: int, maximum: int) -> int:
    """Return how many units of `unit_ms` milliseconds cover a delay of `delay` seconds.

    Rounds up: a message is never early. A float stands for the decimal number that prints it, so
    0.1 s is 100 ms and not the 101 ms that its binary value would need.

    Raises:
        Invalid: the delay is no number, not finite, negative, or more than `maximum` units.
    """
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise Invalid(f"a delay is a number of seconds, not {delay!r}")
    if not math.isfinite(delay):
        raise Invalid(f"a delay is a finite number of seconds, not {delay}")
    if delay < 0:
        raise Invalid(f"a delay cannot be negative: {delay} s")
    count = math.ceil(Fraction(str(delay)) * 1000 / unit_ms)
    if count > maximum:
        raise Invalid(
            f"a delay of {delay} s is beyond the maximum of this topology, "
            f"{seconds(maximum, unit_ms)} s ({maximum} units of {unit_ms} ms)"
        )
    return count


def seconds(count: int, unit_ms: int) -> str:
    """Return a number of units as seconds, in decimal."""
    whole, milliseconds = divmod(count * unit_ms, 1000)
    return f"{whole}.{milliseconds:03d}".rstrip("0").rstrip(".")


def digits(count: int, bits: int) -> str:
    """Return a number of units as exactly `bits` binary digits, the greatest first, with dots."""
    return ".".join(format(count, f"0{bits}b"))


def check_destination(destination: str, bits: int, *, outer: int) -> None:
    """Refuse a destination that is ambiguous beside `bits` digits in a routing key.

    The word with index `outer`, the one farthest from the digits, may be no bare digit:
    `1.0.0.0.0` could then be a delay of 16 units written for a topology of 4 bits, and would be
    taken for destination `1` without delay.

    Raises:
        Invalid: with what is wrong and what may be used.
    """
    if not destination:
        return
    if not _WORDS.fullmatch(destination):
        raise Invalid(
            f"a destination is words of letters, digits, '_' and '-' with dots between them, "
            f"not {destination!r}"
        )
    if (word := destination.split(".")[outer]) in {"0", "1"}:
        raise Invalid(
            f"the word {word!r} at the end of the destination {destination!r} reads as a digit of "
            "the delay; use a letter"
        )
    if len(destination) + 2 * bits > MAX_KEY_BYTES:
        raise Invalid(
            f"the destination is {len(destination)} bytes; beside {bits} digits a routing key has "
            f"room for {MAX_KEY_BYTES - 2 * bits}"
        )
