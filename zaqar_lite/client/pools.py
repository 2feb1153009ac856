"""Pools and flavors as the SDK returns them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """A message store of the server.

    Attributes:
        uri: without its credentials.
        weight: its share of new queues; 0 for none.
        flavor: the flavor that it serves; None for queues without one.
        options: its driver's settings by name, without their values; None where they were not
            asked for.
    """

    name: str
    uri: str
    weight: int
    flavor: str | None = None
    options: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """A name for some pools; a queue with it lies in one of them."""

    name: str
    pools: Sequence[str]
    capabilities: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PoolDrain:
    """How far the queues of a pool have moved to others.

    Attributes:
        state: `running` or `completed`.
        queues_left: queues that have not moved, or not all of them.
        problem: what keeps it from going on; None for nothing.
    """

    pool: str
    state: str
    queues_left: int
    messages_moved: int
    problem: str | None = None
