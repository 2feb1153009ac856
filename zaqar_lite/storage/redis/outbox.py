"""Dead letters and outbox messages on their way to other queues.

A move crosses slots, so it takes three steps, each atomic and each safe to repeat:

1. A script takes a message that became a dead letter out of its queue and puts it into the `outbox`
   of that queue, under a sequence number. Now it is in neither queue, and nobody can claim it.
2. `accept` lets the outbox's letters into the target, which remembers for a day the last number
   that came from each source, so that a repeat changes nothing.
3. `outbox_ack` removes from the outbox what has arrived.

What posts bring along leaves through the same outbox.

A claim, pop or move that caused step 1 does 2 and 3 before it answers, unless the target's node is
away or slow; a settlement begins them and answers. After a crash any process's sweep drains the
outbox, because it knows of the queue. Where all keys are on one server, step 1 registers the queue,
and a sweep looks after two seconds. A cluster's other nodes can't be reached from the script, so
there the queue is registered before step 1 (the script insists: 'arm'). That serves for five
seconds: while the `armed` of the queue's state is to come, each visit of the sweep is followed by
another.

The script of a settlement answers the letters that it put into an empty outbox, so that nobody need
read them. Letters of a source must arrive in the order of their numbers: where others are before
them, the outbox is read from its beginning.
"""

import math
from collections.abc import Sequence
from itertools import groupby

from zaqar_lite.domain.models import Message, QueueRef
from zaqar_lite.storage.redis.codec import pack_letter
from zaqar_lite.storage.redis.keys import keys_of, ref_of
from zaqar_lite.storage.redis.limiter import is_long
from zaqar_lite.storage.redis.runner import Runner

_OUTBOX_MESSAGE = b"\xff\xff"
"""Stands in place of a letter's length if it is an outbox message of a post."""
_MOST_ADOPTED = 100_000


class Outbox:
    """Move the contents of outboxes to their target queues."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._sending: dict[QueueRef, bool] = {}

    async def drain(
        self, queue: QueueRef, known: Sequence[bytes] = (), *, most: float = math.inf
    ) -> tuple[int, set[QueueRef], int]:
        """Move the contents of a queue's outbox to their targets, about `most` of them.

        `known` are the outbox's first letters, if the caller has them. Return how many dead letters
        were moved, which queues they are in, and how many letters are left.
        """
        drained, targets, sent = 0, set[QueueRef](), 0
        while True:
            letters = known or await self._runner.router.run(
                "read_outbox", keys_of(queue), repeatable=True
            )
            known = ()
            if not letters:
                return drained, targets, 0
            for target, dead in (await self.deliver(queue, letters)).items():
                drained += dead
                targets.add(target)
            left = await self.acknowledge(queue, letters)
            sent += len(letters)
            if not left or sent >= most:
                return drained, targets, left

    async def try_to_drain(self, queue: QueueRef, known: Sequence[bytes] = ()) -> None:
        """Drain a queue's outbox now; if that fails, the sweep does it later."""
        await self._runner.follow_ups.run(self.drain(queue, known))

    def begin_to_drain(self, queue: QueueRef, known: Sequence[bytes] = ()) -> None:
        """Drain a queue's outbox in the background, by one task for each queue."""
        if queue in self._sending:
            self._sending[queue] = True
            return
        self._sending[queue] = False
        self._runner.follow_ups.begin(self._drain_while_asked(queue, known))

    async def _drain_while_asked(self, queue: QueueRef, known: Sequence[bytes]) -> None:
        try:
            await self.drain(queue, known)
            while self._sending[queue]:
                self._sending[queue] = False
                await self.drain(queue)
        finally:
            del self._sending[queue]

    async def deliver(self, queue: QueueRef, letters: Sequence[bytes]) -> dict[QueueRef, int]:
        """Move the first letters of a queue's outbox to their targets; return how many to each.

        Outbox messages are moved too, but not counted.
        """
        delivered: dict[QueueRef, int] = {}
        for tag, group in groupby(letters, _target_of):
            target, start, some = ref_of(tag.decode()), 10 + len(tag), list(group)
            source = keys_of(queue).tag
            await self._let_in(target, source, [one[:8] + one[start:] for one in some])
            dead = sum(one[start : start + 2] != _OUTBOX_MESSAGE for one in some)
            if dead:
                delivered[target] = delivered.get(target, 0) + dead
        return delivered

    async def acknowledge(self, queue: QueueRef, letters: Sequence[bytes]) -> int:
        """Remove letters that have arrived from a queue's outbox; return how many are left."""
        _, left = await self._runner.router.run(
            "outbox_ack", keys_of(queue), letters[-1][:8], len(letters), repeatable=True
        )
        return int(left)

    async def _let_in(
        self, target: QueueRef, source: str, letters: Sequence[bytes], operation: str = "accept"
    ) -> None:
        """Store letters and outbox messages in their target."""
        long = is_long(len(letters), letters)
        await self._runner.run(
            target, operation, source, *letters, repeatable=True, is_long=long, surely=True
        )

    async def import_messages(
        self, target: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Store messages of another store in a queue, as letters of a made-up source."""
        first = number * _MOST_ADOPTED
        letters = [
            place.to_bytes(8, "big") + pack_letter(message)
            for place, message in enumerate(messages, first)
        ]
        await self._let_in(target, f"adopted:{source}", letters, "import")


def _target_of(letter: bytes) -> bytes:
    return letter[10 : 10 + int.from_bytes(letter[8:10], "big")]
