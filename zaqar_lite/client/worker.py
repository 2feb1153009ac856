"""A worker: claim, handle, delete, until told to stop.

    @worker("orders", concurrency=8)
    def handle(message: Message) -> None:
        ...

    with Client() as client:
        handle.run(client)          # until SIGTERM or Ctrl-C

    async with AsyncClient() as client:
        await handle.serve(client)  # an async handler, as tasks

A message whose handler returns is deleted. A message whose handler raises is released and counted,
and comes again until the queue's `_max_claim_count` sends it to the dead-letter queue: a worker
never deletes a poison message, and never moves one by itself. So a handler must bear seeing a
message twice.
"""

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypedDict

from zaqar_lite.client.errors import ClaimLost, Refused, ZaqarError
from zaqar_lite.client.models import Message

if TYPE_CHECKING:
    from zaqar_lite.client.async_client import AsyncClient
    from zaqar_lite.client.sync_client import Client

LOG = logging.getLogger(__name__)
Handler = Callable[[Message], Any]


SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Claiming(TypedDict):
    """The arguments of a slot's claims."""

    limit: int
    ttl: int
    grace: int
    details: bool


@dataclasses.dataclass(slots=True)
class WorkerStats:
    """What a worker did: messages processed, handlers that raised, claims lost on the way."""

    processed: int = 0
    failed: int = 0
    lost: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How to work.

    Attributes:
        concurrency: messages handled at a time, each in a thread or a task of its own.
        batch: messages per claim; they are handled one after the other, so keep it small where
            handling is slow.
        ttl: seconds that a claim lasts without renewal: how long a killed worker's messages wait.
        grace: seconds that a message outlives its claim.
        poll: seconds between two looks at an empty queue, for all slots together.
        longest_pause: seconds; after each failure in a row a slot pauses for a random time that
            doubles up to this, so that a dependency that is down does not use up the attempts of
            every message.
        details: whether messages carry claim counts, times, headers and dead-letter sources.
        on_failure: is told about each handler that raised.
    """

    concurrency: int = 1
    batch: int = 10
    ttl: int = 300
    grace: int = 60
    poll: float = 1.0
    longest_pause: float = 30.0
    details: bool = False
    on_failure: Callable[[Message, Exception], None] | None = None

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing would be done.

        Raises:
            ValueError: the text names the number.
        """
        for name in ("concurrency", "batch"):
            if getattr(self, name) < 1:
                message = f"{name} must be at least 1"
                raise ValueError(message)

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row."""
        longest: float = min(self.longest_pause, 0.5 * 2 ** min(failures, 16))
        return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret


class Worker:
    """A handler with a queue; made by `worker`. Calling it calls the handler, as a test would."""

    def __init__(self, handler: Handler, queue: str, options: WorkerOptions) -> None:
        self.handler = handler
        self.queue = queue
        self.options = options
        self.stats = WorkerStats()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def __call__(self, message: Message) -> Any:  # noqa: ANN401 - the handler's own result
        """Call the handler."""
        return self.handler(message)

    def stop(self) -> None:
        """Finish what is in hand, delete it, release the rest; any thread may call this."""
        self._stopping.set()
        self._wake()

    def run(self, client: "Client", *, until_empty: bool = False) -> WorkerStats:
        """Work in threads until SIGTERM, SIGINT or `stop`; or until the queue has no more.

        Raises:
            Refused: the server will not let this client work (no right, no such thing).
        """
        if inspect.iscoroutinefunction(self.handler):
            message = "this handler is async: use `await worker.serve(AsyncClient(...))`"
            raise TypeError(message)
        fatal: list[BaseException] = []
        idle = Idle(self.options, self._stopping)
        self._stopping.clear()
        self._wake = idle.wake

        def slot() -> None:
            try:
                self._slot(client, idle, until_empty=until_empty)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                fatal.append(error)
                self.stop()

        threads = [
            threading.Thread(target=slot, name=f"zaqar-worker-{number}")
            for number in range(self.options.concurrency)
        ]
        with _signals(self.stop):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if fatal:
            raise fatal[0]
        return self.stats

    async def serve(self, client: "AsyncClient", *, until_empty: bool = False) -> WorkerStats:
        """Work in tasks until SIGTERM, SIGINT or `stop`; or until the queue has no more.

        A handler that is not async runs in a thread.

        Raises:
            Refused: the server will not let this client work (no right, no such thing).
        """
        loop, idle = asyncio.get_running_loop(), AsyncIdle(self.options)
        self._stopping.clear()

        def wake() -> None:
            loop.call_soon_threadsafe(idle.stop)

        self._wake = wake
        slots = [
            asyncio.ensure_future(self._async_slot(client, idle, until_empty=until_empty))
            for _ in range(self.options.concurrency)
        ]
        with _loop_signals(loop, self.stop):
            try:
                await asyncio.gather(*slots)
            finally:
                for slot in slots:
                    slot.cancel()
                await asyncio.gather(*slots, return_exceptions=True)
        return self.stats

    def _slot(self, client: "Client", idle: "Idle", *, until_empty: bool) -> None:
        failures = 0
        while not self._stopping.is_set():
            found = False
            try:
                with client.claim(self.queue, **self._claiming()) as claim:
                    found = bool(claim)
                    if found:
                        idle.wake()
                    for message in claim:
                        if self._stopping.is_set():
                            break
                        try:
                            self.handler(message)
                        except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                            claim.skip(message)
                            failures += 1
                            self._failed(message, error)
                            self._stopping.wait(self.options.pause(failures))
                        else:
                            failures = 0
                            claim.done(message)
                            self._count(processed=1)
            except ZaqarError as error:
                self._claim_failed(error)
                self._stopping.wait(self.options.poll)
            else:
                if not found:
                    if until_empty:
                        return
                    idle.wait()

    async def _async_slot(
        self, client: "AsyncClient", idle: "AsyncIdle", *, until_empty: bool
    ) -> None:
        failures = 0
        while not self._stopping.is_set():
            found = False
            try:
                async with client.claim(self.queue, **self._claiming()) as claim:
                    found = bool(claim)
                    if found:
                        idle.wake()
                    for message in claim:
                        if self._stopping.is_set():
                            break
                        try:
                            await self._handle(message)
                        except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                            claim.skip(message)
                            failures += 1
                            self._failed(message, error)
                            await idle.pause(self.options.pause(failures))
                        else:
                            failures = 0
                            claim.done(message)
                            self._count(processed=1)
            except ZaqarError as error:
                self._claim_failed(error)
                await idle.pause(self.options.poll)
            else:
                if not found:
                    if until_empty:
                        return
                    if not self._stopping.is_set():
                        await idle.wait()

    async def _handle(self, message: Message) -> None:
        if inspect.iscoroutinefunction(self.handler):
            await self.handler(message)
        else:
            await asyncio.to_thread(self.handler, message)

    def _claiming(self) -> Claiming:
        options = self.options
        return {
            "limit": options.batch,
            "ttl": options.ttl,
            "grace": options.grace,
            "details": options.details,
        }

    def _failed(self, message: Message, error: Exception) -> None:
        # The type only: an exception's text may quote the message's body.
        LOG.warning("handler of %s failed on %s: %s", self.queue, message.id, type(error).__name__)
        self._count(failed=1)
        if self.options.on_failure is not None:
            self.options.on_failure(message, error)

    def _claim_failed(self, error: ZaqarError) -> None:
        """Note a lost claim or a server that is away; raise what would only fail again."""
        if isinstance(error, Refused) and not isinstance(error, ClaimLost):
            raise error
        LOG.warning("worker on %s: %s", self.queue, error)
        if isinstance(error, ClaimLost):
            self._count(lost=1)

    def _count(self, *, processed: int = 0, failed: int = 0, lost: int = 0) -> None:
        with self._lock:
            self.stats.processed += processed
            self.stats.failed += failed
            self.stats.lost += lost


def worker(
    queue: str,
    *,
    concurrency: int = 1,
    batch: int = 10,
    ttl: int = 300,
    grace: int = 60,
    poll: float = 1.0,
    longest_pause: float = 30.0,
    details: bool = False,
    on_failure: Callable[[Message, Exception], None] | None = None,
) -> Callable[[Handler], Worker]:
    """Make a worker of a handler; the arguments are `WorkerOptions`'."""
    options = WorkerOptions(
        concurrency=concurrency,
        batch=batch,
        ttl=ttl,
        grace=grace,
        poll=poll,
        longest_pause=longest_pause,
        details=details,
        on_failure=on_failure,
    )
    return lambda handler: Worker(handler, queue, options)


class Idle:
    """Let idle slots look at an empty queue once per `poll` together, and wake all on a find."""

    def __init__(self, options: WorkerOptions, stopping: threading.Event) -> None:
        self._longest = 2 * options.poll * options.concurrency
        self._stopping = stopping
        self._condition = threading.Condition()

    def wake(self) -> None:
        """Let every slot claim at once: there are messages, or it is time to stop."""
        with self._condition:
            self._condition.notify_all()

    def wait(self) -> None:
        """Return after a random time, or when woken."""
        with self._condition:
            if not self._stopping.is_set():  # or the wake of a stop would have come too early
                self._condition.wait(random.uniform(0, self._longest))  # noqa: S311 - jitter


class AsyncIdle:
    """`Idle` for tasks."""

    def __init__(self, options: WorkerOptions) -> None:
        self._longest = 2 * options.poll * options.concurrency
        self._found = asyncio.Event()
        self._stopped = asyncio.Event()

    def wake(self) -> None:
        """Let every slot claim at once: there are messages."""
        self._found.set()
        self._found.clear()

    def stop(self) -> None:
        """End every wait and pause."""
        self._stopped.set()
        self.wake()

    async def wait(self) -> None:
        """Return after a random time, or when woken."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._found.wait(), random.uniform(0, self._longest))  # noqa: S311

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or when the worker stops."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
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
def _loop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Do the same on an event loop."""
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
