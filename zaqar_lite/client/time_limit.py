"""A time limit for a handler, in a thread or in a task."""

import asyncio
import ctypes
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class TimeLimitExceeded(Exception):
    """A handler ran longer than its worker's time limit; raised inside of the handler."""


class _Alarm:
    """Raise TimeLimitExceeded in the thread that made it, once, unless it is stopped first."""

    def __init__(self, seconds: float, on_ring: Callable[[int], object]) -> None:
        self._thread = threading.get_ident()
        self._on_ring = on_ring
        self._lock = threading.Lock()
        self._armed = True
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True

    def start(self) -> None:
        """Let the time run; it does not ring before this has started its own thread."""
        with self._lock:  # an exception within the start of a thread would leave that half done
            self._timer.start()

    def stop(self) -> None:
        """Never ring from now on; may be called again."""
        self._timer.cancel()
        with self._lock:
            if self._armed:
                self._armed = False
                _raise_in(self._thread, None)  # one that is on its way

    def _ring(self) -> None:
        with self._lock:
            if not self._armed:
                return
            _raise_in(self._thread, TimeLimitExceeded)
        self._on_ring(self._thread)


def limited(call: Callable[[], T], seconds: float, on_ring: Callable[[int], object]) -> T:
    """Call a function that may take so long; `on_ring` is told its thread when it takes longer.

    The exception is raised between two steps of Python: a function that waits inside of a library
    gets it when the library returns.

    Raises:
        TimeLimitExceeded: it took longer, and was interrupted.
    """
    alarm = _Alarm(seconds, on_ring)
    try:
        try:
            alarm.start()
            return call()
        finally:
            alarm.stop()
    except TimeLimitExceeded as error:
        alarm.stop()  # the first one may have been interrupted itself
        error.args = (f"the handler was interrupted after {seconds:g} s",)
        raise


async def limited_async(call: Awaitable[T], seconds: float) -> T:
    """Await what may take so long; it is cancelled at its limit.

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


def _raise_in(thread: int, kind: type[Exception] | None) -> None:
    """Have a thread raise an exception at its next step; None takes back one that waits."""
    wanted = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), wanted)
