"""A search over queues in one line of text, and which of them to look at first.

The words `orders ready>100 oldest>5m dead>0` find queues with `orders` in their names, more than
100 ready messages, one of them older than five minutes, and dead letters.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from zaqar_lite.durations import seconds_of

_COMPARED = re.compile(r"(ready|delayed|claimed|dead|oldest)(<=|>=|<|>|=)(.+)")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
}


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
