"""Compute every exchange, queue and binding of a delay topology.

With N bits there is a level queue for every power of two below 2^N. Level `2^i` keeps a message
for 2^i units and dead-letters it, under its own routing key, to the topic exchange `2^i.done`,
which has i digits left to decide; the ingest exchange decides all N. An exchange with d digits
left has d + 1 bindings, for z = 0..d-1 ::

    #, z times 0, a 1, d-1-z times *   ->  queue 2^(d-1-z)
    #, d times 0                       ->  the end exchange

so that the first 1 among the last d words picks the next level, and the largest one comes first.
This is the right-anchored form of the published design, with the all-zero binding of the ingest
exchange that it calls optional: without it a message of delay 0 vanishes.

A message's key is its destination, then exactly N binary digits. The `#` swallows destination and
digits already decided. Left-anchored, the digits come first and the destination last; the broker
finds a route faster there (the longer the key, the more), but no topology can grow in place.

Nothing may be dropped: every level exchange and the end exchange have the fanout exchange
`unroutable` as their alternate, whose queue parks messages that match no binding. Without it one
missing destination stops a whole level: at-least-once dead-lettering waits for a route for ever.

Everything here is pure and frozen; nothing imports an AMQP library.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

from zaqar_lite.domain.errors import Conflict, Invalid

MAX_TTL_MS = 315_360_000_000  # RabbitMQ refuses a longer x-message-ttl: ten years
MAX_PREFIX = 60
MAX_KEY_BYTES = 255  # AMQP 0-9-1: a routing key is a short string

_WORDS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)

Arguments = Mapping[str, str | int]


class QueueType(StrEnum):
    """How the queues are stored.

    Quorum queues hand a message to the next level at least once. Classic queues do so at most
    once: killed in mid-transfer, the broker loses messages that it had confirmed.
    """

    QUORUM = "quorum"
    CLASSIC = "classic"


class Anchor(StrEnum):
    """Which end of the routing key the digits are counted from."""

    RIGHT = "right"
    LEFT = "left"


class Head(StrEnum):
    """What may stand before the digits in the ingest exchange's right-anchored patterns.

    ANY is the published design: a key with too many digits is read modulo 2^N, and only the
    publisher can refuse it. With ONE_WORD (destinations are exactly one word) and NOTHING (no
    destination) the broker refuses it too.
    """

    ANY = "#"
    ONE_WORD = "*"
    NOTHING = ""


class Unroutable(StrEnum):
    """What the ingest exchange does with a key that matches no binding.

    PARK confirms it and keeps it in the queue `unroutable`, which protects from publishers that
    do not set the mandatory flag; RETURN sends it back to those who do.
    """

    PARK = "park"
    RETURN = "return"


def bits_for(maximum: float, *, unit_ms: int = 1000) -> int:
    """Return how many bits delays of up to `maximum` seconds need.

    It is the bit length of a whole number, never a logarithm in floating point.

    Raises:
        Invalid: the maximum is no number of seconds, or needs more than RabbitMQ can keep.
    """
    return max(1, units_for(maximum, unit_ms, 2 ** _most_bits(unit_ms) - 1).bit_length())


def _most_bits(unit_ms: int) -> int:
    _check_count("unit_ms", unit_ms)
    return (MAX_TTL_MS // unit_ms).bit_length()


def units_for(delay: float, unit_ms: int, maximum: int) -> int:
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
            f"{in_seconds(maximum, unit_ms)} s ({maximum} units of {unit_ms} ms)"
        )
    return count


def in_seconds(count: int, unit_ms: int) -> str:
    """Return a number of units as seconds, in decimal."""
    whole, milliseconds = divmod(count * unit_ms, 1000)
    return f"{whole}.{milliseconds:03d}".rstrip("0").rstrip(".")


def _check_count(name: str, number: int) -> None:
    if type(number) is not int or number < 1:
        raise Invalid(f"{name} is a whole number of at least 1, not {number!r}")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: str = "topic"
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: Arguments

    @property
    def ttl_ms(self) -> int | None:
        """How long a message stays, in milliseconds; None without end."""
        ttl = self.arguments.get("x-message-ttl")
        return None if ttl is None else int(ttl)


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """A route from an exchange to a queue, or to an exchange."""

    source: str
    destination: str
    destination_type: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Hop:
    """One wait of a message: from this exchange into this queue, for so long."""

    exchange: str
    queue: str
    wait_ms: int


@dataclass(frozen=True)
class Topology:
    """A delay topology: its parameters, and everything that follows from them.

    Args:
        bits: how many binary digits a delay has; the maximum is 2^bits - 1 units.
        unit_ms: the length of a unit in milliseconds: 1000 for up to 29 bits, 1 for up to 39.
        prefix: what all names begin with; another unit or another argument needs another prefix,
            because a queue's arguments can never be changed.
        queue_type: quorum unless losing messages in a crash is acceptable.
        anchor: right unless the broker spends too long on long keys.
        head: what may stand before the digits; only for right-anchored keys.
        unroutable: what the ingest exchange does with a malformed key.
        destinations: destination -> the queue in which messages lie when they are due; the
            destination "" is the bare key of digits.
        draining_bits: an earlier, smaller number of bits whose messages are still on their way:
            their shorter keys stay bound at the end exchange (right-anchored only).

    Raises:
        Invalid: an argument is out of bounds; the text says which and what is possible.
    """

    bits: int
    unit_ms: int = 1000
    prefix: str = "delay"
    queue_type: QueueType = QueueType.QUORUM
    anchor: Anchor = Anchor.RIGHT
    head: Head = Head.ANY
    unroutable: Unroutable = Unroutable.PARK
    destinations: Mapping[str, str] | None = None
    draining_bits: int | None = None

    def __post_init__(self) -> None:
        _check_count("bits", self.bits)
        if self.bits > (most := _most_bits(self.unit_ms)):
            raise Invalid(
                f"{self.bits} bits of {self.unit_ms} ms need a queue with a time to live beyond "
                f"RabbitMQ's ten years; the most is {most} bits"
            )
        if self.anchor is Anchor.LEFT and self.head is not Head.ANY:
            raise Invalid("a head stands before the digits of right-anchored keys only")
        if self.anchor is Anchor.LEFT and self.draining_bits is not None:
            raise Invalid(
                "a left-anchored topology cannot grow while messages are on their way: "
                "make a new one under another prefix"
            )
        if self.draining_bits is not None and not 1 <= self.draining_bits < self.bits:
            raise Invalid(
                f"draining_bits is the number of bits before growth, 1..{self.bits - 1}, "
                f"not {self.draining_bits}"
            )
        self._check_names()

    def _check_names(self) -> None:
        if (
            not _WORDS.fullmatch(self.prefix)
            or len(self.prefix) > MAX_PREFIX
            or self.prefix.startswith("amq.")
        ):
            raise Invalid(
                f"a prefix is 1..{MAX_PREFIX} letters, digits, '_', '-' with dots between words, "
                f"not beginning with 'amq.': {self.prefix!r}"
            )
        for destination, queue in self.targets.items():
            words = destination.split(".") if destination else []
            if self.head is not Head.ANY and len(words) != len(self.head):
                raise Invalid(
                    f"the head {self.head.value!r} of the ingest exchange does not let the "
                    f"destination {destination!r} through"
                )
            if words:
                # `1.0.0.0.0` could be 16 units for a topology of 4 bits, or destination `1`.
                outer = words[-1] if self.anchor is Anchor.LEFT else words[0]
                self._check_destination(destination, outer)
            own = queue.removeprefix(f"{self.prefix}.")
            if not queue or len(queue.encode()) > MAX_KEY_BYTES or queue.startswith("amq."):
                raise Invalid(f"not a queue's name (1..255 bytes, not 'amq.'): {queue!r}")
            if own != queue and (own.isdigit() or own in {"unroutable", "failed", "cancelled"}):
                raise Invalid(f"the topology itself has a queue {queue!r}; name another one")

    def _check_destination(self, destination: str, outer: str) -> None:
        """Refuse a destination that is ambiguous in a key; `outer` is its word far from the digits.

        Raises:
            Invalid: with what is wrong and what may be used.
        """
        if not _WORDS.fullmatch(destination):
            raise Invalid(
                "a destination is words of letters, digits, '_' and '-' with dots between them, "
                f"not {destination!r}"
            )
        if outer in {"0", "1"}:
            raise Invalid(
                f"the word {outer!r} at the end of the destination {destination!r} reads as a "
                "digit of the delay; use a letter"
            )
        if len(destination) + 2 * self.bits > MAX_KEY_BYTES:
            raise Invalid(
                f"the destination is {len(destination)} bytes; beside {self.bits} digits a routing "
                f"key has room for {MAX_KEY_BYTES - 2 * self.bits}"
            )

    def __str__(self) -> str:
        """Count its entities: `7 exchanges, 7 queues, 17 bindings`."""
        counts = len(self.exchanges), len(self.queues), len(self.bindings)
        return "{} exchanges, {} queues, {} bindings".format(*counts)

    @property
    def targets(self) -> Mapping[str, str]:
        """Destination -> queue; by default `zaqar` -> `<prefix>.zaqar`."""
        if self.destinations is None:
            return {"zaqar": f"{self.prefix}.zaqar"}
        return self.destinations

    @property
    def ingest(self) -> str:
        """The exchange to publish to."""
        return f"{self.prefix}.ingest"

    @property
    def end(self) -> str:
        """The exchange in which every delay ends."""
        return f"{self.prefix}.done"

    @property
    def parking(self) -> str:
        """The fanout exchange, and the queue, of messages that match no binding."""
        return f"{self.prefix}.unroutable"

    @property
    def failed(self) -> str:
        """The queue of messages that can never be posted."""
        return f"{self.prefix}.failed"

    @property
    def cancelled(self) -> str:
        """The stream of cancelled ids (`cancellations`)."""
        return f"{self.prefix}.cancelled"

    def level_queue(self, level: int) -> str:
        """The queue that keeps messages for 2^level units."""
        return f"{self.prefix}.{2**level}"

    def level_exchange(self, level: int) -> str:
        """The exchange that decides what comes after level `level`."""
        return f"{self.prefix}.{2**level}.done"

    def too_small(self) -> Conflict:
        """The error where the broker has more bits: patterns of fewer digits match its keys too."""
        larger = f"exchange {self.level_exchange(self.bits)} is of more than {self.bits} bits"
        return Conflict(f"{larger}: give its --max-delay or --bits, or another --prefix")

    @property
    def levels(self) -> range:
        """The levels, the longest wait first."""
        return range(self.bits - 1, -1, -1)

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges, in an order in which they can be declared."""
        alternate = {"alternate-exchange": self.parking}
        ingest = alternate if self.unroutable is Unroutable.PARK else {}
        return (
            Exchange(self.parking, "fanout"),
            Exchange(self.end, arguments=alternate),
            Exchange(self.ingest, arguments=ingest),
            *(Exchange(self.level_exchange(i), arguments=alternate) for i in self.levels),
        )

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """The queues, in an order in which they can be declared."""
        kept: dict[str, str | int] = {"x-queue-type": self.queue_type.value}
        handed_on = dict(kept)
        if self.queue_type is QueueType.QUORUM:
            # Without reject-publish the broker silently falls back to at-most-once.
            handed_on |= {
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            }

        def level(i: int) -> Queue:
            ends = {"x-message-ttl": 2**i * self.unit_ms}
            after = {"x-dead-letter-exchange": self.level_exchange(i)}
            return Queue(self.level_queue(i), handed_on | ends | after)

        # Newer brokers drop what was delivered too often; here it is parked.
        target = handed_on | {"x-dead-letter-exchange": self.parking}
        return (
            Queue(self.parking, kept),
            Queue(self.failed, kept),
            *(Queue(name, target) for name in dict.fromkeys(self.targets.values())),
            *map(level, self.levels),
        )

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings, source by source: ingest, the levels from the longest, the end, parking."""
        return (
            *self._deciding(self.ingest, self.bits),
            *(each for i in self.levels for each in self._deciding(self.level_exchange(i), i)),
            *self._ending(),
            Binding(self.parking, self.parking, "queue", ""),
        )

    def _deciding(self, source: str, left: int) -> Iterator[Binding]:
        """Yield the bindings of an exchange with `left` digits to decide."""
        for zeros in range(left):
            rest = left - 1 - zeros
            words = self._pattern(source, [*"0" * zeros, "1", *"*" * rest], rest)
            yield Binding(source, self.level_queue(rest), "queue", words)
        yield Binding(source, self.end, "exchange", self._pattern(source, [*"0" * left], 0))

    def _pattern(self, source: str, words: list[str], rest: int) -> str:
        """Add to the digits of a pattern what stands on the open side of the key."""
        if self.anchor is Anchor.LEFT:
            decided = self.bits - len(words)
            return ".".join([*"*" * decided, *words[: len(words) - rest], "#"])
        head = self.head.value if source == self.ingest else "#"
        return ".".join([head, *words] if head else words)

    def _ending(self) -> Iterator[Binding]:
        """Yield the end exchange's bindings: exactly the destination, exactly so many digits."""
        for bits in filter(None, (self.bits, self.draining_bits)):
            for destination, queue in self.targets.items():
                key = self._key("*" * bits, destination)
                yield Binding(self.end, queue, "queue", key)

    @property
    def maximum(self) -> int:
        """The longest delay, in units."""
        return (1 << self.bits) - 1

    def units(self, delay: float) -> int:
        """Return the units that a delay of `delay` seconds takes, rounded up.

        Raises:
            Invalid: it is not a number of seconds from 0 to the maximum.
        """
        return units_for(delay, self.unit_ms, self.maximum)

    def routing_key(self, delay: float, destination: str = "zaqar") -> str:
        """Return the key of a message that is due in `delay` seconds.

        Raises:
            Invalid: the delay or the destination is none of this topology.
        """
        if destination not in self.targets:
            known = ", ".join(map(repr, self.targets))
            raise Invalid(f"there is no destination {destination!r} here, only {known}")
        return self._key(format(self.units(delay), f"0{self.bits}b"), destination)

    def _key(self, digits: str, destination: str) -> str:
        words = [destination] if destination else []
        return ".".join([*digits, *words] if self.anchor is Anchor.LEFT else [*words, *digits])

    def path(self, delay: float) -> tuple[Hop, ...]:
        """Return the waits of a message, first to last: the binary digits of its delay.

        Raises:
            Invalid: the delay is not a number of seconds from 0 to the maximum.
        """
        units, exchange, hops = self.units(delay), self.ingest, []
        for level in self.levels:
            if units >> level & 1:
                hops.append(Hop(exchange, self.level_queue(level), 2**level * self.unit_ms))
                exchange = self.level_exchange(level)
        return tuple(hops)
