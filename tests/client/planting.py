"""Raise an exception at each bytecode that `limited` runs after its call: one process for each.

`python -m tests.client.planting` prints at how many bytecodes it came, and what was left behind.
A process of its own, because a deadlock ends by its alarm, and because Python 3.11 runs into an
endless loop where a trace function raises in code that it has specialized.
"""

import itertools
import os
import signal
import sys
from types import FrameType
from typing import Any

from zaqar_lite.client.time_limit import _WATCHER, TimeLimitExceeded, limited

CAME, CAME_TOO_LATE, NEVER_CAME, LEFT_SOMETHING = range(4)


class Planter:
    """Raise at the bytecode of this number, counted from the call's end."""

    def __init__(self, place: int) -> None:
        self._left = place
        self._begun = False
        self.planted = False
        self.leaving = True  # whether `leave` has not been left yet

    def call(self) -> None:
        """Begin to count."""
        self._begun = True

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Follow the frames of the module."""
        if not frame.f_code.co_filename.endswith("client/time_limit.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "return" and frame.f_code.co_name == "leave":
            self.leaving = False
        if event == "opcode" and self._begun and not self.planted:
            if not self._left:
                self.planted = True
                raise TimeLimitExceeded
            self._left -= 1
        return self.trace


def busy() -> None:
    """Run Python, where a thread can be interrupted, without an end."""
    for _ in itertools.count():
        pass


def plant(place: int) -> int:
    """Have it raised at one bytecode; return what came of it."""
    planter = Planter(place)
    sys._getframe().f_trace_opcodes = True  # Python 3.12 heeds those of frames only after one
    sys.settrace(planter.trace)
    try:
        limited(planter.call, 60, lambda _: None)
    except TimeLimitExceeded:
        pass
    finally:
        sys.settrace(None)
    if not planter.planted:
        return NEVER_CAME
    if not planter.leaving:
        return CAME_TOO_LATE  # in truth it has been taken back by then
    if _WATCHER.deadlines or _WATCHER._starting.locked():
        return LEFT_SOMETHING
    try:
        limited(busy, 0.01, lambda _: None)
    except TimeLimitExceeded:
        return CAME
    return LEFT_SOMETHING


def main() -> None:
    """Try one bytecode after the other, until there are no more."""
    for place in itertools.count():
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(plant(place))
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended not in {CAME, CAME_TOO_LATE}:
            print(place, "left something" if ended != NEVER_CAME else "in all")
            return


if __name__ == "__main__":
    main()
