"""Move waiting messages from one topology to another, each with the rest of its delay.

A message is taken out of its level queue, published to the new topology with the rest of its delay,
rounded up, and acknowledged when that is confirmed. So a migration that is killed loses no message
and delivers none early: the messages that it held go back to their queues. A message that was
published but not acknowledged is delivered twice with one id, and Zaqar stores it once.
"""

import asyncio
import time
from typing import NamedTuple

from aio_pika.abc import AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity

from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.rabbitmq.messages import DUE, copy_of
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.topology import Anchor, Topology

TOGETHER = 64  # messages under way at a time
QUIET = 2.0  # seconds in which every level must stay empty: a message may be between two of them


class Migrated(NamedTuple):
    """What a migration did: messages moved, and those left because they can't be moved."""

    moved: int = 0
    left: int = 0


async def migrate(
    connection: AbstractConnection,
    old: Topology,
    new: Topology,
    *,
    quiet: float = QUIET,
) -> Migrated:
    """Move until all levels of the old topology stay empty for `quiet` seconds.

    Publishers must use the new topology already. A message whose delay ends in the old topology
    meanwhile goes to the destination's queue as usual. A message stays where it waits, and is
    counted, if it has no `due-ms` or no id, or if the new topology lacks its delay or destination.

    Raises:
        Invalid: the two have the same prefix: those share their queues, and grow in place.
        Unavailable: one of the two is not there.
    """
    if old.prefix == new.prefix:
        raise Invalid("a topology grows in place under its prefix; migrate to another prefix")
    total, held = 0, list[AbstractIncomingMessage]()
    async with Publisher(connection, new) as publisher, connection.channel() as channel:
        queues = [
            await channel.get_queue(old.level_queue(level), ensure=False) for level in old.levels
        ]
        empty_since = time.monotonic()
        while time.monotonic() - empty_since < quiet:
            for queue in queues:
                while some := await _take(queue):
                    moves = [_move(one, old, publisher) for one in some]
                    moved = await asyncio.gather(*moves)
                    held += [one for one, gone in zip(some, moved, strict=True) if not gone]
                    total += sum(moved)
                    empty_since = time.monotonic()
            await asyncio.sleep(0.05)
        for message in held:
            await message.nack(requeue=True)
    return Migrated(total, len(held))


async def _take(queue: AbstractQueue) -> list[AbstractIncomingMessage]:
    found: list[AbstractIncomingMessage] = []
    try:
        while len(found) < TOGETHER and (one := await queue.get(fail=False)) is not None:
            found.append(one)
    except ChannelNotFoundEntity as error:
        raise Unavailable(f"{error}: is the old topology applied, with as many bits?") from error
    return found


async def _move(message: AbstractIncomingMessage, old: Topology, publisher: Publisher) -> bool:
    """Move a message; False where the new topology can't take it."""
    due = message.headers.get(DUE)
    if not isinstance(due, int):
        return False
    try:
        delay = max(0.0, due / 1000 - time.time())
        destination = destination_of(message, old)
        await publisher.publish(copy_of(message), delay=delay, destination=destination)
    except Invalid:
        return False
    await message.ack()
    return True


def destination_of(message: AbstractIncomingMessage, old: Topology) -> str:
    """Return the destination in a key: what stands beside its digits."""
    words = (message.routing_key or "").split(".")
    for count in (old.bits, old.draining_bits or old.bits):
        split = count if old.anchor is Anchor.LEFT else len(words) - count
        halves = [words[: max(0, split)], words[max(0, split) :]]
        digits, rest = halves if old.anchor is Anchor.LEFT else reversed(halves)
        if len(digits) == count and set(digits) <= {"0", "1"}:
            break
    return ".".join(rest)
