"""A time limit for a handler, in a thread or in a task.

A thread is interrupted by an exception that another thread plants in it, and that arrives between
any two of its bytecodes: also within the `__enter__` of a lock, which then stays taken for ever. So
one thread watches all deadlines, and a thread with a deadline only assigns to plain attributes from
the moment that it may be interrupted until nothing can interrupt it any more.
"""

import asyncio
import ctypes
import logging
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class TimeLimitExceeded(Exception):
    """A handler ran longer than its worker's time limit; raised inside of the handler."""


class _Deadline:
    """When a thread's call must have ended.

    Attributes:
        begun: whether the thread is where it may be interrupted; only that thread assigns it.
        over: whether the call has ended; only that thread assigns it.
        ringing, planted: whether the watcher interrupts the call now, or has; only it assigns them.
    """

    def __init__(self, seconds: float, on_ring: Callable[[int], object]) -> None:
        self.thread = threading.get_ident()
        self.at = time.monotonic() + seconds
        self.on_ring = on_ring
        self.begun = False
        self.over = False
        self.ringing = self.planted = False

    def ring(self) -> None:
        """Interrupt the call, unless it has ended; called once, by the watcher."""
        self.ringing = True
        try:
            if not self.over:
                self.on_ring(self.thread)
        except Exception:
            LOG.exception("what shall happen at a time limit has failed")
        if not self.over:
            self.planted = True
            _plant(self.thread)
        self.ringing = False

    def leave(self) -> None:
        """Return when nothing can interrupt this thread any more; may be interrupted itself."""
        self.over = True
        while self.ringing:
            time.sleep(0.0005)
        if self.planted:
            # It may not have arrived: another takes its place, and arrives here. Were it cleared
            # instead, Python 3.11 would look for one at each step, and begin no traced function.
            with suppress(TimeLimitExceeded):
                _plant(self.thread)
                while True:
                    pass


class _Watcher:
    """One thread that rings every deadline of the process when its time has come."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Watch nothing yet; also in a child process, which has none of its parent's threads."""
        self.deadlines: set[_Deadline] = set()
        self._next_look = math.inf
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, deadline: _Deadline) -> None:
        """Watch a deadline of a call that has not begun yet."""
        self.deadlines.add(deadline)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="zaqar-limits", daemon=True)
                    thread.start()
                    self._thread = thread
        if deadline.at < self._next_look:
            self._woken.put(None)

    def _run(self) -> None:
        while True:
            self._next_look = math.inf  # a deadline that comes now wakes this thread
            next_look, now = math.inf, time.monotonic()
            for deadline in self.deadlines.copy():
                if deadline.at > now:
                    next_look = min(next_look, deadline.at)
                elif not deadline.begun:
                    next_look = min(next_look, now + 0.001)
                else:
                    self.deadlines.discard(deadline)
                    deadline.ring()
            self._next_look = next_look
            seconds = next_look - time.monotonic()
            with suppress(queue.Empty):
                self._woken.get(timeout=None if math.isinf(seconds) else max(0.0, seconds))


_WATCHER = _Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WATCHER.begin)


def limited(call: Callable[[], T], seconds: float, on_ring: Callable[[int], object]) -> T:
    """Call a function that may take so long; `on_ring` is told its thread when it takes longer.

    The exception is raised between two steps of Python: a function that waits inside of a library
    gets it when the library returns.

    Raises:
        TimeLimitExceeded: it took longer, and was interrupted.
    """
    deadline = _Deadline(seconds, on_ring)
    _WATCHER.add(deadline)
    try:
        try:
            deadline.begun = True
            return call()
        finally:
            deadline.leave()
    except TimeLimitExceeded as error:
        # There is only one interruption: if `leave` did not end, this is it.
        deadline.over = True
        error.args = (f"the handler was interrupted after {seconds:g} s",)
        raise
    finally:
        _WATCHER.deadlines.discard(deadline)


async def limited_async(call: Awaitable[T], seconds: float | None) -> T:
    """Await what may take so long; it is cancelled at its limit, if there is one.

    Raises:
        TimeLimitExceeded: it took longer.
    """
    try:
        async with asyncio.timeout(seconds) as scope:
            return await call
    except TimeoutError as error:
        if not scope.expired():
            raise  # the handler's own
        message = f"the handler was cancelled after {seconds:g} s"
        raise TimeLimitExceeded(message) from error


def stack_of(thread: int) -> str:
    """Return where a thread is, as a traceback shows it."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(it has ended)"


def _plant(thread: int) -> None:
    """Have a thread raise the exception at its next step, in place of one that still waits."""
    kind = ctypes.py_object(TimeLimitExceeded)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)
