"""How an operation runs its script on a queue, and what it does when the script has answered."""

from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.letters import Sweeper
from zaqar_lite.storage.redis.scripts import load


class Runner:
    """Run scripts on queues, and tell the sweep of what they leave for later."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._router = connection.router
        self._clock = clock
        self._follow_ups = connection.follow_ups
        self.sweeper = Sweeper(connection.router, clock)
        self._sending: dict[QueueRef, bool] = {}

    async def run(
        self, queue: QueueRef, script: str, *words: str | bytes | int, repeatable: bool = False
    ) -> Any:  # noqa: ANN401 - a reply is what the script made it
        """Run a script on a queue; again as long as it only brought the queue up to now.

        Raises:
            QueueChanged: the script found the record at another version.
        """
        keys = keys_of(queue)
        while True:
            reply = await self._router.run(
                load(script), keys, self._clock.offset_ms, *words, repeatable=repeatable
            )
            if reply[0] == b"changed":
                raise QueueChanged(f"The queue {queue.name!r} changed or was deleted meanwhile.")
            if reply[0] == b"again" and len(reply) == 3:
                continue
            return reply

    async def register(self, queue: QueueRef, instant: int) -> None:
        """Let the sweep visit a queue at an instant (ms), unless it is 0."""
        if instant:
            await self._follow_ups.run(self.sweeper.register(keys_of(queue), instant))

    async def try_to_register(self, queue: QueueRef, instant: int) -> bool:
        """Let the sweep visit a queue; answer whether it knows by now."""
        return await self._follow_ups.run(self.sweeper.register(keys_of(queue), instant))

    async def drain(self, queue: QueueRef) -> None:
        """Bring dead letters to their queues, at once or by the sweep."""
        await self._follow_ups.run(self.sweeper.drain(keys_of(queue)))

    def send(self, queue: QueueRef) -> None:
        """Begin to bring companions to their queues; what is on its way to one goes together."""
        if queue in self._sending:
            self._sending[queue] = True
            return
        self._sending[queue] = False
        self._follow_ups.begin(self._send(queue))

    async def _send(self, queue: QueueRef) -> None:
        try:
            while True:
                self._sending[queue] = False
                await self.sweeper.drain(keys_of(queue))
                if not self._sending[queue]:
                    return
        finally:
            del self._sending[queue]
