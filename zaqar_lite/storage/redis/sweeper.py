"""The sweep: visit the queues in which something is due, and finish what a crash interrupted."""

import logging
from collections.abc import AsyncIterator

from zaqar_lite.domain.errors import Unavailable, Unsupported
from zaqar_lite.domain.models import QueueRef, RetryPolicyOf, SweepResult
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.redis.faults import Fault
from zaqar_lite.storage.redis.keys import EVERYWHERE, ref_of
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.runner import Runner, policy_words

logger = logging.getLogger(__name__)
_QUEUES_PER_STEP = 100
_ROUNDS = 100
_SOON_MS = 500
"""How long the sweep leaves a queue alone in which nothing was due."""
LATER_MS = 5_000
"""How long the sweep skips a queue whose node does not answer."""


class Sweeper:
    """Visit the queues in which something is due."""

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._runner = runner
        self._outbox = outbox

    async def sweep(self, limit: int, retries_of: RetryPolicyOf) -> SweepResult:
        """Visit the queues that are due, until about `limit` entries were cleaned up.

        A queue with more to clean up than one step does stays due, so it is visited again.
        """
        run = self._runner.router.run
        total = SweepResult()
        for _ in range(_ROUNDS):
            most = min(limit, _QUEUES_PER_STEP)
            now, visits = await run("visits", EVERYWHERE, most, repeatable=True)
            for tag, score in zip(visits[::2], visits[1::2], strict=True):
                if total.total >= limit:
                    return total
                queue = ref_of(tag.decode())
                swept, following = await self._visit(queue, limit - total.total, now, retries_of)
                if following is None:
                    following = now + LATER_MS
                elif following and not swept.total:  # its node's clock is behind the index's
                    following = max(following, now + _SOON_MS)
                await run("reschedule", EVERYWHERE, tag, score, following)
                total = total.plus(swept)
            if not visits:
                break
        return total

    async def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        """Name the queues that will be visited: all that hold something."""
        cursor: bytes | int = 0
        while True:
            cursor, found = await self._runner.router.command(
                EVERYWHERE.slot, "ZSCAN", EVERYWHERE.key("visits"), cursor, "COUNT", MAX_EXAMINED
            )
            for tag in found[::2]:
                yield ref_of(tag.decode())
            if int(cursor) == 0:
                return

    async def _visit(
        self, queue: QueueRef, budget: int, now: int, retries_of: RetryPolicyOf
    ) -> tuple[SweepResult, int | None]:
        """Clean up one queue; return when to visit it next, or None if that failed."""
        retries = None
        try:
            retries = await retries_of(queue)
            words = "", "", budget, *policy_words(queue, retries)
            reply = await self._runner.run(queue, "sweep", *words, has_policy=True)
        except (Unavailable, Unsupported, Fault) as exc:  # a fault may be of this queue alone
            is_policy = retries is None and isinstance(exc, Unavailable)
            if is_policy and await self._is_reached(queue):  # so the store of policies is away
                raise
            logger.warning("the sweep passes the queue %s over: %s", queue.name, exc)
            return SweepResult(), None
        _, expired, forgotten, promoted, lapsed, letters, following = reply
        swept = SweepResult(expired, promoted, lapsed, 0, forgotten)
        if letters:
            try:
                moved, targets, left = await self._outbox.drain(queue, most=budget)
                swept = swept._replace(moved=moved, letters_in=frozenset(targets))
                following = min(following, now) if left else following
            except (Unavailable, Fault) as exc:
                logger.warning("dead letters go on waiting for their queue: %s", exc)
        return swept, following

    async def _is_reached(self, queue: QueueRef) -> bool:
        """Whether the node that has a queue answers."""
        try:
            await self._runner.run(queue, "next_due", repeatable=True)
        except Unavailable:
            return False
        return True
