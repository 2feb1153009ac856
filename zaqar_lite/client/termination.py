"""Signals while a claim is held: give the messages back first, then end as the signal wants.

Nothing here acts unless SIGTERM has its default disposition: a program that handles the signal
itself knows better, and its own `with` blocks release the claims.
"""

import asyncio
import collections
import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from zaqar_lite.client.long_polling import Connection
from zaqar_lite.client.steps import Async, Step, Steps, Sync

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
        self.requested = False  # whether a signal came during a shield
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
        if self.requested and not self._shields:
            self.requested = False
            raise SystemExit(EXIT_STATUS)

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
            self.requested = True
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

    def hold(self, task: "asyncio.Task[object]") -> bool:
        """Begin to listen for SIGTERM; if this returns True, `let_go` must follow."""
        if threading.current_thread() is not threading.main_thread():
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


class Hold(Step):
    """Listen for SIGTERM: the outcome is the function that ends that, None where nobody listens."""

    def take(self, client: Sync) -> Callable[[], None] | None:
        """Hold, if this is the main thread."""
        return TERMINATION.let_go if TERMINATION.hold() else None

    async def take_async(self, client: Async) -> Callable[[], None] | None:
        """Hold for the current task."""
        task = asyncio.current_task()
        if task is None or not ASYNC_TERMINATION.hold(task):
            return None
        return partial(ASYNC_TERMINATION.let_go, task)


@dataclasses.dataclass(frozen=True, slots=True)
class ToTheEnd(Step):
    """Take steps that a signal or a cancellation must not cut: what they have claimed is held.

    Attributes:
        make: makes the steps, with a function that tells whether they shall end soon.
        on_sigterm: whether SIGTERM lets them come to their end, too.
        connection: is hung up when they shall end soon.
    """

    make: Callable[[Callable[[], bool]], Steps[Any]]
    on_sigterm: bool
    connection: Connection | None = None

    def take(self, client: Sync) -> Any:  # noqa: ANN401 - the result of the steps
        """Take them, also when SIGTERM comes meanwhile."""
        if not (self.on_sigterm and TERMINATION.hold()):
            return client._run(self.make(lambda: False))
        try:
            with TERMINATION.shield(self.connection):
                return client._run(self.make(lambda: TERMINATION.requested))
        finally:
            TERMINATION.let_go()

    async def take_async(self, client: Async) -> Any:  # noqa: ANN401
        """Take them, also when a cancellation comes meanwhile; a second one cuts the call."""
        let_go = await Hold().take_async(client) if self.on_sigterm else None
        cancelled: list[asyncio.CancelledError] = []
        running = asyncio.ensure_future(client._run(self.make(lambda: bool(cancelled))))
        try:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError as error:
                    if cancelled:
                        running.cancel()
                    elif self.connection is not None:
                        self.connection.hang_up()
                    cancelled.append(error)
            if cancelled:  # whatever has failed meanwhile
                raise cancelled[0] from running.exception()
            return running.result()
        finally:
            if let_go is not None:
                let_go()


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop the worker, where signals can be had (the main thread).

    `stop` must wake whoever waits, in a thread or on an event loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, lambda *_: stop()) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
