"""Keep Python's garbage collector from holding up requests.

A full collection visits every object that can be part of a cycle. That takes 117 to 250 ms for each
million objects, and no request is answered meanwhile. Reference counts free nearly all that the
server makes; only cycles, as of exceptions and closed connections, are left for the collector.
"""

import gc
import time
from collections.abc import Callable, Mapping

_LONG = 0.0005
_ENOUGH = 500_000


class Collector:
    """Collects garbage in portions.

    What survives a collection of more than 0.5 ms is frozen: later collections do not visit it. So
    each one visits only objects made since, and the thresholds keep these to about 10,000: 1 to
    2 ms. Garbage among the frozen objects waits for a thorough collection, which visits everything.
    One is due when at least 500,000 objects that were frozen since the last one are still there,
    and at least as many as that one left: a server has a few of them in its life.
    """

    def __init__(self) -> None:
        self._later: Callable[[Callable[[], None]], object]
        self._began = 0.0
        self._thresholds = gc.get_threshold()
        self._left = 0
        self.frozen = 0
        """How many objects have been frozen since the last thorough collection, at most."""

    def start(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Freeze all present objects, and set thresholds that keep collections short.

        `later` calls what it is given soon, in the event loop.
        """
        self._later = later
        self._freeze_all()
        gc.set_threshold(1_000, 3, 1)
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Set the thresholds as they were; what is frozen stays frozen.

        The process is about to end, and one more full collection would only delay that.
        """
        gc.set_threshold(*self._thresholds)
        gc.callbacks.remove(self._note)

    @property
    def _is_due(self) -> bool:
        return self.frozen >= max(_ENOUGH, self._left)

    def look(self) -> None:
        """Collect thoroughly if that is due."""
        if self._is_due:  # most of them have gone since by their reference counts
            self.frozen = gc.get_freeze_count() - self._left
        if self._is_due:
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
            if self._is_due:
                self._later(self.look)  # within a collection there can be no other
