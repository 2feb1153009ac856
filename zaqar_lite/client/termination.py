"""Signals while a claim is held: give the messages back first, then end as the signal wants.

Nothing here acts unless SIGTERM has its default disposition: a program that handles the signal
itself knows better, and its own `with` blocks release the claims.
"""

import asyncio
import collections
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from zaqar_lite.client.long_polling import Connection

EXIT_STATUS = 128 + signal.SIGTERM
SIGNALS = (signal.SIGTERM, signal.SIGINT)  # what stops a worker


def _may_install() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )


class Termination:
    """For sync claims of the main thread: SIGTERM becomes SystemExit, which unwinds `with`."""

    def __init__(self) -> None:
        self._holders = 0
        self._shields = 0
        self._requested = False
        self._connection: Connection | None = None

    def hold(self) -> bool:
        """Begin to listen for SIGTERM; if this returns True, `let_go` must follow."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if self._holders == 0:
            if not _may_install():
                return False
            signal.signal(signal.SIGTERM, self._on_signal)
        self._holders += 1
        return True

    def let_go(self) -> None:
        """Stop listening when the last holder is gone; end the process if that was deferred."""
        self._holders -= 1
        if self._holders == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._requested and not self._shields:
            self._requested = False
            raise SystemExit(EXIT_STATUS)

    @property
    def requested(self) -> bool:
        """Whether a signal came during a shield."""
        return self._requested

    @contextlib.contextmanager
    def shield(self, connection: Connection | None = None) -> Iterator[None]:
        """Defer the signal, which would leave a claim without a holder, or cut a delete short.

        It hangs up the connection of a claim that waits for messages.
        """
        self._shields += 1
        self._connection = connection
        try:
            yield
        finally:
            self._shields -= 1
            self._connection = None

    def _on_signal(self, *_: object) -> None:
        if self._shields:
            self._requested = True
            if self._connection is not None:
                self._connection.hang_up()
        else:
            raise SystemExit(EXIT_STATUS)


class AsyncTermination:
    """For async claims of the main thread's loop: SIGTERM cancels the tasks that hold claims.

    When the last of them has given its messages back, the signal is raised again, with its
    default disposition: the process ends as it would have, only later.
    """

    def __init__(self) -> None:
        self._tasks: collections.Counter[asyncio.Task[object]] = collections.Counter()
        self._requested = False

    def hold(self, task: "asyncio.Task[object] | None") -> bool:
        """Begin to listen for SIGTERM; if this returns True, `let_go` must follow."""
        if task is None or threading.current_thread() is not threading.main_thread():
            return False
        if not self._tasks:
            if not _may_install():
                return False
            try:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_signal)
            except NotImplementedError:  # Windows
                return False
        self._tasks[task] += 1
        return True

    def let_go(self, task: "asyncio.Task[object]") -> None:
        """Stop listening when the last holder is gone; then a signal that came ends the process."""
        self._tasks[task] -= 1
        if self._tasks[task] <= 0:
            del self._tasks[task]
        if not self._tasks:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            if self._requested:
                signal.raise_signal(signal.SIGTERM)

    def _on_signal(self) -> None:
        self._requested = True
        for task in list(self._tasks):
            task.cancel()


TERMINATION = Termination()
ASYNC_TERMINATION = AsyncTermination()


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop the worker, where signals can be had (the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, lambda *_: stop()) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def stopping_on_loop_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None]
) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop a worker on an event loop of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in SIGNALS}
    for one in SIGNALS:
        loop.add_signal_handler(one, stop)
    try:
        yield
    finally:
        for one, handler in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, handler)
