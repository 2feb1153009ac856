"""The queues that `watch` looks at."""

import argparse
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from zaqar_lite import searching
from zaqar_lite.searching import Search

if TYPE_CHECKING:
    from zaqar_lite.client import Client

MOST_QUEUES = 1_000
"""How many queues one look asks about; each takes a request."""


def search(text: str) -> Search:
    """Read words such as `orders ready>100 oldest>5m dead>0`, for argparse."""
    try:
        return searching.search(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def named(client: "Client", wanted: Search) -> tuple[dict[str, Mapping[str, object]], bool]:
    """Return the metadata of queues by name, and whether there are more than `MOST_QUEUES`."""
    part = wanted.names[0] if wanted.names else None
    queues = (
        queue
        for queue in client.list_queues(detailed=True, name=part)
        if wanted.names_it(queue.name)
    )
    found = list(islice(queues, MOST_QUEUES + 1))
    kept = {queue.name: queue.metadata or {} for queue in found[:MOST_QUEUES]}
    return kept, len(found) > MOST_QUEUES
