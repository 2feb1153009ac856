"""Dead letters on their way, and the sweep that finishes what a crash left undone.

A move crosses slots, so it takes three steps, each atomic and each safe to repeat:

1. `claim` or `pop` takes an exhausted message out of its queue and puts it into the `outbox` there,
   under a sequence number. Now it is in neither queue; nobody can claim it.
2. `accept` lets the outbox's letters into the target, which remembers the last number that came
   from each source, so that a repeat changes nothing, however late it is.
3. `outbox_ack` removes from the outbox what has arrived.

Whoever caused step 1 does 2 and 3 before it answers, unless the target's node is away or slow. It
has registered the queue with the sweep before step 1 (the script insists), so after a crash any
process's sweep drains the outbox.
"""

import logging
from collections.abc import Sequence
from itertools import groupby

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef, Swept
from zaqar_lite.storage.redis.keys import EVERYWHERE, Keys, ref_of
from zaqar_lite.storage.redis.router import Router
from zaqar_lite.storage.redis.scripts import load

logger = logging.getLogger(__name__)
_QUEUES_PER_STEP = 100
_ROUNDS = 100
_LATER_MS = 5_000
"""How long the sweep leaves a queue alone whose node does not answer."""


class Sweeper:
    """Drain outboxes, and visit the queues in which something is due."""

    def __init__(self, router: Router, clock: Clock) -> None:
        self._router = router
        self._clock = clock

    async def register(self, keys: Keys, instant: int) -> None:
        """Let the sweep visit a queue at an instant (ms)."""
        await self._router.run(load("register"), EVERYWHERE, keys.tag, instant, repeatable=True)

    async def drain(self, keys: Keys) -> tuple[int, set[QueueRef]]:
        """Bring the letters of a queue's outbox to their targets; answer how many, and these."""
        drained, targets = 0, set[QueueRef]()
        while True:
            letters: Sequence[bytes] = await self._router.run(
                load("letters"), keys, repeatable=True
            )
            if not letters:
                return drained, targets
            for tag, group in groupby(letters, _target_of):
                target = Keys(tag.decode())
                await self._deliver(keys, target, list(group))
                targets.add(ref_of(target.tag))
            await self._router.run(
                load("outbox_ack"), keys, letters[-1][:8], len(letters), repeatable=True
            )
            drained += len(letters)

    async def _deliver(self, source: Keys, target: Keys, letters: Sequence[bytes]) -> None:
        _, instant = await self._router.run(
            load("accept"),
            target,
            self._clock.offset_ms,
            source.tag,
            *(letter[:8] + letter[10 + len(target.tag) :] for letter in letters),
            repeatable=True,
        )
        if instant:
            await self.register(target, instant)

    async def sweep(self, limit: int) -> Swept:
        """Visit the queues that are due until about `limit` entries were tidied up.

        A queue that has more to tidy up than one step does is due again, so it is visited again.
        """
        total = Swept()
        for _ in range(_ROUNDS):
            now, visits = await self._router.run(
                load("visits"),
                EVERYWHERE,
                self._clock.offset_ms,
                min(limit, _QUEUES_PER_STEP),
                repeatable=True,
            )
            for tag, score in zip(visits[::2], visits[1::2], strict=True):
                if total.total >= limit:
                    return total
                swept, following = await self._visit(tag, limit - total.total)
                if following is None:
                    following = now + _LATER_MS
                await self._router.run(load("reschedule"), EVERYWHERE, tag, score, following)
                total = _sum(total, swept)
            if not visits:
                break
        return total

    async def _visit(self, tag: bytes, budget: int) -> tuple[Swept, int | None]:
        """Tidy up one queue; answer when it must be visited next, None where its node is away."""
        keys = Keys(tag.decode())
        try:
            _, expired, forgotten, promoted, lapsed, letters, following = await self._router.run(
                load("sweep"), keys, self._clock.offset_ms, budget
            )
        except Unavailable as exc:
            logger.warning("the sweep passes a queue over: %s", exc)
            return Swept(), None
        moved, targets = 0, set[QueueRef]()
        if letters:
            try:
                moved, targets = await self.drain(keys)
            except Unavailable as exc:
                logger.warning("dead letters go on waiting for their queue: %s", exc)
        swept = Swept(expired, promoted, lapsed, moved, forgotten, frozenset(targets))
        return swept, following


def _sum(one: Swept, other: Swept) -> Swept:
    return Swept(
        one.expired + other.expired,
        one.promoted + other.promoted,
        one.lapsed + other.lapsed,
        one.moved + other.moved,
        one.deleted + other.deleted,
        one.letters_in | other.letters_in,
    )


def _target_of(letter: bytes) -> bytes:
    return letter[10 : 10 + int.from_bytes(letter[8:10], "big")]
