"""Walk a message through exchanges, queues and bindings as a broker would.

It knows AMQP's routing (topic and fanout exchanges, alternate exchanges, one copy per destination
however many bindings match) and nothing of delays, so it can say whether bindings that were
computed, imported or read back from a broker do what they should.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from zaqar_lite.rabbitmq.topology import Binding, Exchange, Hop, Queue, Topology

MAX_HOPS = 64  # no topology has as many levels: more is a loop


@dataclass(frozen=True, slots=True)
class Journey:
    """Where one copy of a message went.

    Attributes:
        hops: the waits, first to last.
        last: the exchange that the copy was last handed to: ingest, or a level's.
        queue: the queue without time to live in which it ended; None where no exchange had a
            route: it was returned to its publisher, or dropped.
    """

    hops: tuple[Hop, ...]
    last: str
    queue: str | None

    @property
    def wait_ms(self) -> int:
        """The whole delay, in milliseconds."""
        return sum(hop.wait_ms for hop in self.hops)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Each word is matched with the dot before it, so that `#` can stand for no word at all.
    parts = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    words = pattern.split(".") if pattern else []
    return re.compile("".join(parts.get(word, r"\." + re.escape(word)) for word in words))


def topic_matches(pattern: str, key: str) -> bool:
    """Say whether a topic exchange's binding pattern matches a routing key.

    `*` is exactly one word, `#` any number of words, none included.
    """
    return _compiled(pattern).fullmatch(f".{key}" if key else "") is not None


class Simulator:
    """A broker's routing over a fixed set of entities."""

    def __init__(
        self,
        exchanges: Iterable[Exchange],
        queues: Iterable[Queue],
        bindings: Iterable[Binding],
    ) -> None:
        self._exchanges = {exchange.name: exchange for exchange in exchanges}
        self._queues = {queue.name: queue for queue in queues}
        self._from: dict[str, list[Binding]] = {}
        for binding in bindings:
            self._from.setdefault(binding.source, []).append(binding)

    @classmethod
    def of(cls, topology: Topology) -> "Simulator":
        """Make one of a computed topology."""
        return cls(topology.exchanges, topology.queues, topology.bindings)

    def walk(self, exchange: str, key: str) -> tuple[Journey, ...]:
        """Publish to an exchange and follow every copy of the message.

        Exactly one journey is what a delay must make; more are duplicates.
        """
        return tuple(self._walk(exchange, key, ()))

    def _walk(self, exchange: str, key: str, hops: tuple[Hop, ...]) -> Iterator[Journey]:
        if len(hops) > MAX_HOPS:
            raise RecursionError(f"a message with key {key!r} never leaves: {hops[:4]} ...")
        targets = self._route(exchange, key)
        if not targets:
            yield Journey(hops, exchange, None)
        for name in targets:
            queue = self._queues[name]
            after = queue.arguments.get("x-dead-letter-exchange")
            if queue.ttl_ms is None or after is None:
                yield Journey(hops, exchange, name)
            else:
                hop = Hop(exchange, name, queue.ttl_ms)
                yield from self._walk(str(after), key, (*hops, hop))

    def _route(self, exchange: str, key: str) -> list[str]:
        """Return the queues that get a copy, each once."""
        found: dict[str, None] = {}
        here = self._exchanges[exchange]
        for binding in self._from.get(exchange, ()):
            if here.type != "fanout" and not topic_matches(binding.routing_key, key):
                continue
            if binding.destination_type == "queue":
                found[binding.destination] = None
            else:
                found |= dict.fromkeys(self._route(binding.destination, key))
        alternate = here.arguments.get("alternate-exchange")
        if not found and alternate:
            return self._route(str(alternate), key)
        return list(found)
