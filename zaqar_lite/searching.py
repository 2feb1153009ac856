"""A search over queues in one line of text, and which of them to look at first.

The words `orders ready>100 oldest>5m dead>0` find queues with `orders` in their names, more than
100 ready messages, one of them older than five minutes, and dead letters.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

_DAY = 86400.0
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY, "y": 365 * _DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w|y)")
_COMPARED = re.compile(r"(ready|delayed|claimed|dead|oldest)(<=|>=|<|>|=)(.+)")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
}


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as 30s, 5m or 1h30m; a plain number is seconds.

    Raises:
        ValueError: the text is no duration.
    """
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * UNITS[unit] for number, unit in parts)
    number = float(text)
    if not 0 <= number < math.inf:
        message = f"{text!r} is no duration"
        raise ValueError(message)
    return number


class Search(NamedTuple):
    """What is looked for: parts of the name, and counts compared with numbers."""

    names: tuple[str, ...] = ()
    counts: tuple[tuple[str, Callable[[float, float], bool], float], ...] = ()

    def finds(self, row: Mapping[str, object]) -> bool:
        """Whether a queue's row matches; counts that are not known are 0."""
        for name, compare, number in self.counts:
            value = row["oldest_age" if name == "oldest" else name]
            if not compare(value if isinstance(value, int | float) else 0, number):
                return False
        return self.names_it(str(row["queue"]))

    def names_it(self, queue: str) -> bool:
        """Whether a queue's name has all the parts."""
        return all(part in queue for part in self.names)


def search(text: str) -> Search:
    """Read the words of a search.

    Raises:
        ValueError: a count is compared with what is no number.
    """
    names: list[str] = []
    counts = []
    for word in text.split():
        found = _COMPARED.fullmatch(word)
        if found is None:
            names.append(word)
            continue
        try:
            counts.append((found[1], _OPERATORS[found[2]], seconds_of(found[3])))
        except ValueError:
            message = f"{found[3]!r} in {word!r} is neither a number nor a duration"
            raise ValueError(message) from None
    return Search(tuple(names), tuple(counts))


def by_trouble(row: Mapping[str, object]) -> tuple[float, ...]:
    """The key that sorts the worst first: dead letters, then what has waited longest, then most."""
    counts = (row["dead"], row["oldest_age"], row["ready"])
    return tuple(-count if isinstance(count, int | float) else 0 for count in counts)
