"""Keep Python's garbage collector from holding up requests.

A full collection visits every object that can be part of a cycle. That takes 117 to 250 ms for each
million objects, and no request is answered meanwhile. Reference counts free nearly all that the
server makes; only cycles, as of exceptions and closed connections, are left for the collector.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping

_LONG = 0.0005
_ENOUGH = 500_000
_TOO_MANY = 4
_INTERVAL = 1.0
_IDLE = 0.03
"""A process that works for a larger share of a second than this is not idle."""


class Collector:
    """Collects garbage in portions.

    What survives a collection of more than 0.5 ms is frozen: later collections do not visit it. So
    each one visits only objects made since, and the thresholds keep these to about 10,000: 1 to
    2 ms. Garbage among the frozen objects waits for a thorough collection, which visits everything.

    A thorough collection is due when at least 500,000 objects have been frozen since the last one,
    and at least as many as that one left. It runs in the next idle second, or when four times as
    many have been frozen. A second is idle if no request began or ended in it and the process
    hardly worked. Requests that only wait, for a message or a store, do not make it busy.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._thresholds = gc.get_threshold()
        self._left = 0
        self.frozen = 0
        """How many objects have been frozen since the last thorough collection, at most."""

    def start(self) -> None:
        """Freeze all present objects, and set thresholds that keep collections short."""
        self._freeze_all()
        gc.set_threshold(1_000, 3, 1)
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Set the thresholds as they were; what is frozen stays frozen.

        The process is about to end, and one more full collection would only delay that.
        """
        gc.set_threshold(*self._thresholds)
        gc.callbacks.remove(self._note)

    async def follow(
        self, count_requests: Callable[[], int], worked: Callable[[], float] = time.process_time
    ) -> None:
        """Check every second, for ever, whether to collect.

        The count grows with each request that begins or ends, and `worked` (seconds of CPU) with
        everything that the process does, such as jobs, deliveries and streams.
        """
        seen, before = count_requests(), worked()
        while True:
            await asyncio.sleep(_INTERVAL)
            count, now = count_requests(), worked()
            self.look(is_idle=count == seen and now - before < _IDLE * _INTERVAL)
            seen, before = count, worked()  # after the look, whose own work does not count

    def look(self, *, is_idle: bool) -> None:
        """Collect what is due; a thorough collection is done earlier if the server is idle."""
        due_at = max(_ENOUGH, self._left) * (1 if is_idle else _TOO_MANY)
        if self.frozen >= due_at:  # most of them have gone since by their reference counts
            self.frozen = gc.get_freeze_count() - self._left
        if self.frozen >= due_at:
            gc.unfreeze()
            self._freeze_all()

    def _freeze_all(self) -> None:
        """Collect everything, and freeze what is left."""
        gc.collect()
        gc.freeze()
        # Python puts a full collection off until a quarter as many objects are new as the last one
        # has left. This one leaves none.
        gc.collect()
        self.frozen, self._left = 0, gc.get_freeze_count()

    def _note(self, phase: str, collection: Mapping[str, int]) -> None:
        if collection["generation"] < 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > _LONG:
            self.frozen += len(gc.get_objects(generation=2))
            gc.freeze()
