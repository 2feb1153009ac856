"""Which queues of a project to look at first, and a search over them."""

import argparse
import operator
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from zaqar_lite.commands import durations

if TYPE_CHECKING:
    from zaqar_lite.client import Client

MOST_QUEUES = 1_000
"""Queues that one look asks about; each is a request."""
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
        """Whether a queue's row is what is looked for; what is not known is 0."""
        for name, compare, number in self.counts:
            value = row["oldest_age" if name == "oldest" else name]
            if not compare(value if isinstance(value, int | float) else 0, number):
                return False
        return self.names_it(str(row["queue"]))

    def names_it(self, queue: str) -> bool:
        """Whether a queue's name has all the parts."""
        return all(part in queue for part in self.names)


def search(text: str) -> Search:
    """Read words such as `orders ready>100 oldest>5m dead>0`, for argparse."""
    names: list[str] = []
    counts = []
    for word in text.split():
        found = _COMPARED.fullmatch(word)
        if found is None:
            names.append(word)
            continue
        try:
            counts.append((found[1], _OPERATORS[found[2]], durations.parse(found[3])))
        except ValueError:
            message = f"{found[3]!r} in {word!r} is neither a number nor a duration"
            raise argparse.ArgumentTypeError(message) from None
    return Search(tuple(names), tuple(counts))


def by_trouble(row: Mapping[str, object]) -> tuple[float, ...]:
    """The key that sorts the worst first: dead letters, then what has waited longest, then most."""
    counts = (row["dead"], row["oldest_age"], row["ready"])
    return tuple(-count if isinstance(count, int | float) else 0 for count in counts)


def named(client: "Client", wanted: Search) -> tuple[dict[str, Mapping[str, object]], bool]:
    """The metadata of the project's queues by name, and whether there are more than are asked."""
    part = wanted.names[0] if wanted.names else None
    queues = (
        queue
        for queue in client.list_queues(detailed=True, name=part)
        if wanted.names_it(queue.name)
    )
    found = list(islice(queues, MOST_QUEUES + 1))
    kept = {queue.name: queue.metadata or {} for queue in found[:MOST_QUEUES]}
    return kept, len(found) > MOST_QUEUES
