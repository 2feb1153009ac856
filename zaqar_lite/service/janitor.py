"""The janitor: bounded sweeps in the background, on every server process.

Nothing that a reader sees depends on it: expiry, lapse and delay are decided by deadlines. It frees
memory, finishes what a crash cut short, and drains queues whose delay was switched off.
"""

import asyncio
import logging

from zaqar_lite.domain.errors import QueueChanged, Unavailable
from zaqar_lite.domain.models import QueueRecord
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import ManagementStore, MessageStore

logger = logging.getLogger(__name__)
_STEP = 1_000
_STEPS = 50


class Janitor:
    """Sweep every `interval` seconds until it is stopped."""

    def __init__(
        self,
        messages: MessageStore,
        management: ManagementStore,
        queues: Queues,
        *,
        interval: float,
    ) -> None:
        self._messages = messages
        self._management = management
        self._queues = queues
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep in a task of the running event loop."""
        self._task = asyncio.create_task(self._run(), name="janitor")

    async def stop(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def sweep(self) -> int:
        """Do one round: sweep in bounded steps until nothing is left, drain exposing queues.

        Answers how many entries were touched.
        """
        touched = 0
        for _ in range(_STEPS):
            swept = await self._messages.sweep(_STEP)
            touched += swept.total
            for ref in swept.letters_in:
                await self._queues.ensure_dead_letter_queue(ref)
            if swept.total < _STEP:
                break
            await asyncio.sleep(0)
        for record in await self._management.exposing_queues(limit=_STEPS):
            touched += await self._drain(record)
        return touched

    async def _drain(self, record: QueueRecord) -> int:
        """Make an exposing queue's delayed messages ready, then the queue a normal one.

        The record is written at the version that was read first: a post that was decided by an
        older record was refused by its version, so no delayed message can come after the last
        step; and a delay that was switched on again in between wins.
        """
        touched = 0
        for _ in range(_STEPS):
            exposed = await self._messages.expose(record.ref, _STEP)
            touched += exposed
            if exposed < _STEP:
                try:
                    await self._management.update_queue(
                        QueueRecord(record.ref, record.metadata, record.version)
                    )
                except QueueChanged:
                    logger.info("a queue changed while it was drained; the next round looks again")
                break
            await asyncio.sleep(0)
        return touched

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.sweep()
            except Unavailable as exc:
                logger.warning("sweep put off: %s", exc)
            except Exception:
                # A bug must not end the sweeping for the life of the process.
                logger.exception("sweep failed")
