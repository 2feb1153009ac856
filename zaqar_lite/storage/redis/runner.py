"""How an operation runs its script on a queue, and what it does when the script has answered."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.letters import ARMED_MS, Sweeper
from zaqar_lite.storage.redis.limiter import FairLimiter
from zaqar_lite.storage.redis.scripts import load

_MOST_ARMED = 10_000


class Runner:
    """Run scripts on queues, and tell the sweep of what they leave for later."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._router = connection.router
        self._clock = clock
        self._follow_ups = connection.follow_ups
        self.sweeper = Sweeper(connection.router, clock)
        self._limiter = FairLimiter()
        self._sending: dict[QueueRef, bool] = {}
        self._armed: dict[QueueRef, int] = {}

    async def run(
        self,
        queue: QueueRef,
        script: str,
        *words: str | bytes | int,
        repeatable: bool = False,
        cost: int = 0,
    ) -> Any:  # noqa: ANN401 - a reply is what the script made it
        """Run a script on a queue; again as long as it only brought the queue up to now.

        One that has a `cost` (in messages) waits for its turn; a post in parts is finished first.

        Raises:
            QueueChanged: the script found the record at another version.
        """
        keys = keys_of(queue)
        while True:
            call = partial(self._router.run, load(script), keys, self._clock.offset_ms, *words)
            if cost:
                async with self._limiter.slot(queue.project, cost):
                    reply = await call(repeatable=repeatable)
            else:
                reply = await call(repeatable=repeatable)
            if reply[0] == b"busy":
                await self.sweeper.finish(keys)
                continue
            if reply[0] == b"changed":
                raise QueueChanged(f"The queue {queue.name!r} changed or was deleted meanwhile.")
            if reply[0] == b"again" and len(reply) == 3:
                continue
            return reply

    async def register(self, queue: QueueRef, instant: int) -> None:
        """Let the sweep visit a queue at an instant (ms), unless it is 0."""
        if instant:
            await self._follow_ups.run(self.sweeper.register(keys_of(queue), instant))

    async def finish(self, queue: QueueRef) -> None:
        """Store the parts of a post that is committed, or leave the rest to whoever comes next."""
        await self._follow_ups.run(self.sweeper.finish(keys_of(queue)), patience=None)

    def armed_until(self, queue: QueueRef) -> int:
        """Until when the sweep is known to come to a queue, so that letters may leave it; or 0."""
        return self._armed.get(queue, 0)

    async def arm(self, queue: QueueRef, now: int) -> None:
        """Register a queue whose script asked for it at `now`."""
        await self.sweeper.register(keys_of(queue), now)
        if len(self._armed) >= _MOST_ARMED:
            self._armed.clear()
        self._armed[queue] = now + ARMED_MS

    async def try_to_arm(self, queue: QueueRef, now: int) -> bool:
        """Register a queue whose script asked for it; answer whether the sweep knows by now."""
        return await self._follow_ups.run(self.arm(queue, now))

    async def drain(self, queue: QueueRef, letters: Sequence[bytes] = ()) -> None:
        """Bring dead letters to their queues, at once or by the sweep.

        `letters` are what is there, if the caller knows.
        """
        await self._follow_ups.run(self.sweeper.drain(keys_of(queue), letters))

    def send(self, queue: QueueRef, letters: Sequence[bytes] = ()) -> None:
        """Begin to bring what is in a queue's outbox to its targets; one task does so for a queue.

        `letters` are what is there, if the caller knows.
        """
        if queue in self._sending:
            self._sending[queue] = True
            return
        self._sending[queue] = False
        self._follow_ups.begin(self._send(queue, letters))

    async def _send(self, queue: QueueRef, letters: Sequence[bytes]) -> None:
        keys = keys_of(queue)
        try:
            if letters:
                await self.sweeper.bring(keys, letters)
                self._sending[queue] |= bool(await self.sweeper.acknowledge(keys, letters))
            else:
                self._sending[queue] = True
            while self._sending[queue]:
                self._sending[queue] = False
                await self.sweeper.drain(keys)
        finally:
            del self._sending[queue]
