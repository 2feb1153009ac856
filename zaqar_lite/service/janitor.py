"""The janitor: bounded sweeps in the background, on every server process.

Nothing that a reader sees depends on it: expiry, lapse and delay are decided by deadlines. It frees
memory, finishes what a crash cut short, and drains queues whose delay was switched off.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from zaqar_lite.domain.models import QueueRecord, SweepResult
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

_STEP = 250
_QUEUES = 10


@dataclass(eq=False, repr=False)
class Janitor(BackgroundWorker):
    """Sweep in bounded steps, one after the other while there is work; look again after a rest.

    There is no fixed rate, so nothing that is due can pile up. After a step that found work the
    janitor pauses for as long as that step took: it has at most half of the store's time, and the
    requests have the rest. `note` is told what each step did and how long it took.
    """

    messages: MessageStore
    management: ManagementStore
    queues: Queues
    policies: Policies
    interval: float
    note: Callable[[SweepResult, int, float], None] | None = None

    def __post_init__(self) -> None:
        self._work = Background("sweep", self._sweep, rest=self.interval)

    async def step(self) -> int:
        """Sweep one bounded step, and drain exposing queues by one; answer how much was done.

        0 means that there is nothing left to do now.
        """
        await next_turn()
        begun = perf_counter()
        swept = await self.messages.sweep(self.messages.sweep_step, self.policies.retries_of)
        for queue in swept.letters_in:
            await self.queues.ensure_dead_letter_queue(queue)
        done = swept.total + await self.management.sweep_records(_STEP)
        for record in await self.management.exposing_queues(limit=_QUEUES):
            done += await self._drain(record)
        if self.note is not None:
            self.note(swept, done, perf_counter() - begun)
        return done

    async def _drain(self, record: QueueRecord) -> int:
        """Make some messages of an exposing queue ready; after the last one, make the queue normal.

        The record is written at the version that was read first. A post under an older record is
        refused by its version, so no delayed message can follow the last step; and a delay that was
        switched on again meanwhile stays on.
        """
        released, version = 0, record.version if self.policies.checked else None
        with LoggedErrors(f"the delayed messages of {record.queue.name!r}"):
            released = await self.messages.release_delayed(record.queue, _STEP, version=version)
            if released < _STEP:
                await self.management.update_queue(
                    QueueRecord(record.queue, record.metadata, record.version)
                )
                released += 1
        return released

    async def _sweep(self) -> float:
        started = perf_counter()
        done = await self.step()
        return min(perf_counter() - started, self.interval) if done else self.interval
