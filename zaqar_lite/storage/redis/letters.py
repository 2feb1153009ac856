"""Dead letters on their way, and the sweep that finishes what a crash left undone.

A move crosses slots, so it takes three steps, each atomic and each safe to repeat:

1. `claim` or `pop` takes an exhausted message out of its queue and puts it into the `outbox` there,
   under a sequence number. Now it is in neither queue; nobody can claim it.
2. `accept` lets the outbox's letters into the target, which remembers the last number that came
   from each source, so that a repeat changes nothing, however late it is.
3. `outbox_ack` removes from the outbox what has arrived.

Whoever caused step 1 does 2 and 3 before it answers. It has registered the queue with the sweep
before step 1 (the script insists), so after a crash any process's sweep drains the outbox.
"""

from collections.abc import Sequence
from itertools import groupby

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Swept
from zaqar_lite.storage.redis.keys import EVERYWHERE, Keys
from zaqar_lite.storage.redis.router import Router
from zaqar_lite.storage.redis.scripts import load

_LETTERS_PER_STEP = 100


class Sweeper:
    """Drain outboxes, and visit the queues in which something is due."""

    def __init__(self, router: Router, clock: Clock) -> None:
        self._router = router
        self._clock = clock

    async def register(self, keys: Keys, instant: int) -> None:
        """Let the sweep visit a queue at an instant (ms)."""
        await self._router.run(load("register"), EVERYWHERE, keys.tag, instant, repeatable=True)

    async def drain(self, keys: Keys) -> int:
        """Bring the letters of a queue's outbox to their targets; answer how many there were."""
        drained = 0
        while True:
            letters: Sequence[bytes] = await self._router.command(
                keys.slot, "LRANGE", keys.key("outbox"), 0, _LETTERS_PER_STEP - 1
            )
            if not letters:
                return drained
            for target, group in groupby(letters, _target_of):
                await self._deliver(keys, Keys(target.decode()), list(group))
            await self._router.run(load("outbox_ack"), keys, letters[-1][:8], repeatable=True)
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
        """Visit the queues that are due, until about `limit` entries were tidied up."""
        total = Swept()
        left = limit
        visits = await self._router.run(
            load("visits"), EVERYWHERE, self._clock.offset_ms, limit, repeatable=True
        )
        for tag, score in zip(visits[::2], visits[1::2], strict=True):
            if left <= 0:
                break
            swept = await self._visit(Keys(tag.decode()), score, left)
            total = Swept(
                total.expired + swept.expired,
                total.promoted + swept.promoted,
                total.lapsed + swept.lapsed,
                total.moved + swept.moved,
            )
            left -= max(1, swept.total)
        return total

    async def _visit(self, keys: Keys, score: bytes, budget: int) -> Swept:
        """Tidy up one queue and note when it must be visited next."""
        _, expired, promoted, lapsed, letters, following = await self._router.run(
            load("sweep"), keys, self._clock.offset_ms, budget
        )
        moved = await self.drain(keys) if letters else 0
        await self._router.run(load("reschedule"), EVERYWHERE, keys.tag, score, following)
        return Swept(expired=expired, promoted=promoted, lapsed=lapsed, moved=moved)


def _target_of(letter: bytes) -> bytes:
    return letter[10 : 10 + int.from_bytes(letter[8:10], "big")]
