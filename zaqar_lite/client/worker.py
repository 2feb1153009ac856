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
import dataclasses
import inspect
import logging
import random
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from zaqar_lite.client.errors import ClaimLost, QueueNotFound, Refused, ZaqarError
from zaqar_lite.client.idle import AsyncIdle, Idle
from zaqar_lite.client.ledger import Ledger
from zaqar_lite.client.models import Message
from zaqar_lite.client.termination import stopping_on_loop_signals, stopping_on_signals
from zaqar_lite.client.time_limit import limited, limited_async

if TYPE_CHECKING:
    from zaqar_lite.client.async_client import AsyncClient
    from zaqar_lite.client.sync_client import Client

LOG = logging.getLogger(__name__)
Handler = Callable[[Message], Any]


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
        must_exist: whether to refuse to work on a queue that nobody has made, instead of waiting
            for its first message: the name may be mistyped.
        time_limit: seconds that a handler may take for a message. Then it is interrupted by
            `TimeLimitExceeded` (an async one is cancelled), which counts as a failure. A handler
            that waits inside of a library is interrupted when that returns; until then its claim
            is not renewed, so that its messages come again after `ttl`.
        on_failure: is told about each handler that raised, instead of a traceback in the log.
    """

    concurrency: int = 1
    batch: int = 10
    ttl: int = 300
    grace: int = 60
    poll: float = 1.0
    longest_pause: float = 30.0
    details: bool = False
    must_exist: bool = False
    time_limit: float | None = None
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
        if self.time_limit is not None and self.time_limit <= 0:
            message = "time_limit must be above 0"
            raise ValueError(message)

    @property
    def longest_wait(self) -> float:
        """The seconds that one of the slots waits at most, so that all look once in `poll`."""
        return 2 * self.poll * self.concurrency

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
        if self.options.must_exist and not client.queue_exists(self.queue):
            raise _absent(self.queue)
        idle = Idle(self.options.longest_wait, self._stopping)
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
        with stopping_on_signals(self.stop):
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
        if self.options.must_exist and not await client.queue_exists(self.queue):
            raise _absent(self.queue)
        loop, idle = asyncio.get_running_loop(), AsyncIdle(self.options.longest_wait)
        self._stopping.clear()

        def wake() -> None:
            loop.call_soon_threadsafe(idle.stop)

        self._wake = wake
        slots = [
            asyncio.ensure_future(self._async_slot(client, idle, until_empty=until_empty))
            for _ in range(self.options.concurrency)
        ]
        with stopping_on_loop_signals(loop, self.stop):
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
                            self._call(claim, message)
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
                            await self._call_async(claim, message)
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

    def _call(self, claim: Ledger, message: Message) -> None:
        limit = self.options.time_limit
        if limit is None:
            self.handler(message)
            return
        try:
            limited(lambda: self.handler(message), limit, partial(self._late, claim, message))
        finally:
            claim.keep(renewing=True)

    async def _call_async(self, claim: Ledger, message: Message) -> None:
        if not inspect.iscoroutinefunction(self.handler):
            await asyncio.to_thread(self._call, claim, message)
        elif self.options.time_limit is None:
            await self.handler(message)
        else:
            await limited_async(self.handler(message), self.options.time_limit)

    def _late(self, claim: Ledger, message: Message, thread: int) -> None:
        """Let the claim of a handler that may never return lapse, and log where it is."""
        claim.keep(renewing=False)
        frame = sys._current_frames().get(thread)
        LOG.warning(
            "handler of %s takes longer than %g s for %s; it is at\n%s",
            self.queue,
            self.options.time_limit,
            message.id,
            "".join(traceback.format_stack(frame)) if frame is not None else "(it has ended)",
        )

    def _claiming(self) -> Claiming:
        options = self.options
        return {
            "limit": options.batch,
            "ttl": options.ttl,
            "grace": options.grace,
            "details": options.details,
        }

    def _failed(self, message: Message, error: Exception) -> None:
        self._count(failed=1)
        words = "handler of %s failed on %s: %s"
        facts = (self.queue, message.id, type(error).__name__)
        if self.options.on_failure is None:
            LOG.warning(words, *facts, exc_info=error)
            return
        LOG.warning(words, *facts)
        try:
            self.options.on_failure(message, error)
        except Exception:
            LOG.exception("on_failure of %s failed on %s", self.queue, message.id)

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
    must_exist: bool = False,
    time_limit: float | None = None,
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
        must_exist=must_exist,
        time_limit=time_limit,
        on_failure=on_failure,
    )
    return lambda handler: Worker(handler, queue, options)


def _absent(queue: str) -> QueueNotFound:
    return QueueNotFound("No such queue", f"{queue} does not exist, and the worker wants it to")
