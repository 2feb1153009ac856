"""Keep Python's garbage collector from holding up requests.

A full collection looks at every object there is that can be part of a cycle: 117 to 250 ms for each
million, in which nobody is answered. Reference counts free what the server makes; what is left to
collect are cycles, as of exceptions and closed connections.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping

_LONG = 0.001
_ENOUGH = 500_000
_TOO_MANY = 4
_INTERVAL = 1.0
_IDLE = 0.03
"""The largest share of its time that a process without requests works."""


class Collector:
    """Collects garbage in portions.

    What a collection of more than 1 ms leaves is frozen: no collection looks at it again. So each
    looks at what has been made since; the thresholds keep that to about 40,000 objects. What
    becomes garbage among the frozen objects waits for a thorough collection of all.

    A thorough collection is due when as many objects have been frozen since the last one as that
    one left, and at least 500,000. It is done in the next idle second, or, if there is none, when
    four times as many have been frozen. A second is idle if no request began or ended in it and
    this process hardly worked; requests that only wait, for a message or for a store, do not count.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._thresholds = gc.get_threshold()
        self._left = 0
        self.frozen = 0
        """How many objects have been frozen since the last thorough collection, at most."""

    def start(self) -> None:
        """Freeze what is there, and let the collections that follow be short."""
        gc.collect()
        gc.freeze()
        self._left = gc.get_freeze_count()
        gc.set_threshold(2_000, 5, 1)
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Let Python's collector work as it did before; what is frozen stays so.

        The process is about to end, and would only look at all of it once more.
        """
        gc.set_threshold(*self._thresholds)
        gc.callbacks.remove(self._note)

    async def follow(
        self, count_requests: Callable[[], int], worked: Callable[[], float] = time.process_time
    ) -> None:
        """Look every second, for ever, whether something is to be collected.

        The count grows with each request that begins or ends, and `worked` (seconds) with all that
        the process does, such as jobs, deliveries and streams.
        """
        seen, before = count_requests(), worked()
        while True:
            await asyncio.sleep(_INTERVAL)
            count, now = count_requests(), worked()
            self.look(is_idle=count == seen and now - before < _IDLE * _INTERVAL)
            seen, before = count, worked()  # after the look, whose own work does not count

    def look(self, *, is_idle: bool) -> None:
        """Collect what there is to collect now; an idle server keeps nobody waiting."""
        if not is_idle:
            gc.collect()
        due_at = max(_ENOUGH, self._left) * (1 if is_idle else _TOO_MANY)
        if self.frozen >= due_at:  # most of them have gone since by their reference counts
            self.frozen = gc.get_freeze_count() - self._left
        if self.frozen >= due_at:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self.frozen, self._left = 0, gc.get_freeze_count()

    def _note(self, phase: str, collection: Mapping[str, int]) -> None:
        if collection["generation"] < 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > _LONG:
            self.frozen += len(gc.get_objects(generation=2))
            gc.freeze()
