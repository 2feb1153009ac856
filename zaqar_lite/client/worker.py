"""A worker: claim, handle, delete, until told to stop.

    @worker("orders", concurrency=8)
    def handle(message: Message) -> None:
        ...

    with Client() as client:
        handle.run(client)          # until SIGTERM or Ctrl-C

    async with AsyncClient() as client:
        await handle.serve(client)  # an async handler, as tasks

A message whose handler returns is deleted. One whose handler raises is given back as failed, with
the exception's type as the reason: it comes again after the queue's `_retry_backoff`, until the
queue's `_max_failures` or `_max_claim_count` makes it a dead letter. A handler that knows more
raises `Retry(after=30)` or `Reject("bad_format")`. A message may come twice.
"""

import asyncio
import contextlib
import inspect
import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from zaqar_lite.client.arguments import takes, text
from zaqar_lite.client.async_claims import AsyncClaim
from zaqar_lite.client.claims import Claim
from zaqar_lite.client.errors import (
    BadRequest,
    ClaimLost,
    QueueNotFound,
    Refused,
    Unreachable,
    Unsupported,
    ZaqarError,
)
from zaqar_lite.client.ledger import Ledger
from zaqar_lite.client.models import Message
from zaqar_lite.client.settlements import NO_TARGET
from zaqar_lite.client.termination import stopping_on_loop_signals, stopping_on_signals
from zaqar_lite.client.time_limit import limited, limited_async, stack_of
from zaqar_lite.client.verdicts import Reject, Retry, instead_of_dead, verdict
from zaqar_lite.client.worker_options import Handler, Middleware, WorkerOptions, WorkerStats

if TYPE_CHECKING:
    from zaqar_lite.client.asynchronous.client import AsyncClient
    from zaqar_lite.client.sync.client import Client

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Worker:
    """A handler with a queue; made by `worker`. Calling it calls the handler, as a test would."""

    def __init__(self, handler: Handler, queue: str, options: WorkerOptions) -> None:
        text("queue", queue)
        takes("worker", handler, Callable, "a handler, which is a function of a message")
        self.handler = handler
        self.queue = queue
        self.options = options
        self._handle = handler
        self.stats = WorkerStats()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self._waiting: Ledger | None = None

    def __call__(self, message: Message) -> Any:  # noqa: ANN401 - the handler's own result
        """Call the handler."""
        return self.handler(message)

    def stop(self) -> None:
        """Finish what is in hand, delete it, release the rest; any thread may call this."""
        self._stopping.set()
        self._wake()

    def run(self, client: "Client", *, until_empty: bool = False) -> WorkerStats:
        """Work in threads until SIGTERM, SIGINT or `stop`; or until nothing can be claimed.

        Raises:
            Refused: the server will not let this client work (no right, no such thing).
        """
        if inspect.iscoroutinefunction(self.handler):
            message = "this handler is async: use `await worker.serve(AsyncClient(...))`"
            raise TypeError(message)
        if inspect.iscoroutinefunction(client.call):
            message = "run takes a Client: with an AsyncClient use `await worker.serve(client)`"
            raise TypeError(message)
        self._handle = self.options.wrapped(self.handler, client.tracing)
        fatal: list[BaseException] = []
        if self.options.must_exist and not client.queue_exists(self.queue):
            raise _absent(self.queue)
        turn = threading.Lock()
        self._stopping.clear()
        self._wake = self._hang_up

        def slot() -> None:
            try:
                self._slot(client, turn, until_empty=until_empty)
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
        """Work in tasks until SIGTERM, SIGINT or `stop`; or until nothing can be claimed.

        A handler that is not async runs in a thread.

        Raises:
            Refused: the server will not let this client work (no right, no such thing).
        """
        if not inspect.iscoroutinefunction(client.call):
            message = "serve takes an AsyncClient: with a Client use `worker.run(client)`"
            raise TypeError(message)
        if self.options.must_exist and not await client.queue_exists(self.queue):
            raise _absent(self.queue)
        self._handle = self.options.wrapped(self.handler, client.tracing)
        loop, turn, stopped = asyncio.get_running_loop(), asyncio.Lock(), asyncio.Event()
        self._stopping.clear()

        def stop() -> None:
            stopped.set()
            self._hang_up()

        def wake() -> None:
            loop.call_soon_threadsafe(stop)

        self._wake = wake
        slots = [
            asyncio.ensure_future(self._async_slot(client, turn, stopped, until_empty=until_empty))
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

    def _hang_up(self) -> None:
        """End the wait of the slot that waits for messages."""
        waiting = self._waiting
        if waiting is not None:
            waiting.hang_up()

    # One slot at a time waits at the server; a slot that has found something looks again at once.

    def _slot(self, client: "Client", turn: threading.Lock, *, until_empty: bool) -> None:
        found, failures = until_empty, 0
        while not self._stopping.is_set():
            try:
                with contextlib.ExitStack() as block:
                    options = self.options.claim_options(wait=0 if found else math.inf)
                    claim = Claim(client, self.queue, options)
                    if found:
                        block.enter_context(claim)
                    else:
                        with turn:
                            self._about_to_wait(claim)
                            block.enter_context(claim)
                    found = bool(claim)
                    for message in claim:
                        if self._stopping.is_set():
                            break
                        try:
                            self._call(claim, message)
                        except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                            failures += 1
                            self._failed(message, error)
                            self._give_back(client, claim, message, error)
                            self._stopping.wait(self.options.pause(error, failures))
                        else:
                            failures = 0
                            claim.done(message)
                            self._count(processed=1)
            except ZaqarError as error:
                self._claim_failed(error)
                self._stopping.wait(self.options.poll)
            else:
                if until_empty and not found:
                    return

    async def _async_slot(
        self,
        client: "AsyncClient",
        turn: asyncio.Lock,
        stopped: asyncio.Event,
        *,
        until_empty: bool,
    ) -> None:
        found, failures = until_empty, 0
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as block:
                    options = self.options.claim_options(wait=0 if found else math.inf)
                    claim = AsyncClaim(client, self.queue, options)
                    if found:
                        await block.enter_async_context(claim)
                    else:
                        async with turn:
                            self._about_to_wait(claim)
                            await block.enter_async_context(claim)
                    found = bool(claim)
                    for message in claim:
                        if self._stopping.is_set():
                            break
                        try:
                            await self._call_async(claim, message)
                        except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                            failures += 1
                            self._failed(message, error)
                            await self._give_back_async(client, claim, message, error)
                            await _sleep(self.options.pause(error, failures), stopped)
                        else:
                            failures = 0
                            claim.done(message)
                            self._count(processed=1)
            except ZaqarError as error:
                self._claim_failed(error)
                await _sleep(self.options.poll, stopped)
            else:
                if until_empty and not found:
                    return

    def _about_to_wait(self, claim: Ledger) -> None:
        """Have `stop` end this claim's wait, even if it has come already."""
        self._waiting = claim
        if self._stopping.is_set():
            claim.hang_up()

    def _give_back(
        self, client: "Client", claim: "Claim", message: Message, error: Exception
    ) -> None:
        settlement = verdict(message, error, report=self.options.report_errors)
        if not client.settles:
            claim.skip(message)
            return
        try:
            (result,) = claim.settle(settlement)
            if result.outcome == NO_TARGET:
                self._no_dead_letters(message)
                (result,) = claim.settle(instead_of_dead(message, settlement))
            result.check()
        except (Unsupported, BadRequest) as refusal:
            self._not_settled(message, refusal)
            claim.skip(message)

    async def _give_back_async(
        self, client: "AsyncClient", claim: "AsyncClaim", message: Message, error: Exception
    ) -> None:
        settlement = verdict(message, error, report=self.options.report_errors)
        if not client.settles:
            claim.skip(message)
            return
        try:
            (result,) = await claim.settle(settlement)
            if result.outcome == NO_TARGET:
                self._no_dead_letters(message)
                (result,) = await claim.settle(instead_of_dead(message, settlement))
            result.check()
        except (Unsupported, BadRequest) as refusal:
            self._not_settled(message, refusal)
            claim.skip(message)

    def _call(self, claim: Ledger, message: Message) -> None:
        if (limit := self.options.time_limit) is None:
            self._handle(message)
            return
        try:
            limited(lambda: self._handle(message), limit, partial(self._late, claim, message))
        finally:
            claim.keep(renewing=True)

    async def _call_async(self, claim: Ledger, message: Message) -> None:
        if not inspect.iscoroutinefunction(self.handler):
            await asyncio.to_thread(self._call, claim, message)
        elif (limit := self.options.time_limit) is None:
            await self._handle(message)
        else:
            await limited_async(self._handle(message), limit)

    def _late(self, claim: Ledger, message: Message, thread: int) -> None:
        """Let the claim of a handler that may never return lapse, and log where it is."""
        claim.keep(renewing=False)
        LOG.warning(
            "handler of %s takes longer than %g s for %s; it is at\n%s",
            self.queue,
            self.options.time_limit,
            message.id,
            stack_of(thread),
        )

    def _no_dead_letters(self, message: Message) -> None:
        text = "%s was rejected, but %s has no place for dead letters: it comes again"
        LOG.warning(text, message.id, self.queue)

    def _not_settled(self, message: Message, refusal: ZaqarError) -> None:
        text = "%s of %s is given back at the end of its claim, without delay or reason: %s"
        LOG.warning(text, message.id, self.queue, refusal)

    def _failed(self, message: Message, error: Exception) -> None:
        self._count(failed=1)
        is_verdict = isinstance(error, Retry | Reject)
        LOG.warning(
            "handler of %s failed on %s: %s",
            self.queue,
            message.id,
            error if is_verdict else type(error).__name__,
            exc_info=None if is_verdict or self.options.on_failure else error,
        )
        if self.options.on_failure is None:
            return
        try:
            self.options.on_failure(message, error)
        except Exception:
            LOG.exception("on_failure of %s failed on %s", self.queue, message.id)

    def _claim_failed(self, error: ZaqarError) -> None:
        """Log a lost claim or a server that is away; raise an error that would only come again."""
        never = isinstance(error, Unreachable) and error.permanent
        if never or (isinstance(error, Refused) and not isinstance(error, ClaimLost)):
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
    report_errors: bool = False,
    time_limit: float | None = None,
    on_failure: Callable[[Message, Exception], None] | None = None,
    decoder: Callable[[Any], T] | None = None,
    middleware: Sequence[Middleware] = (),
) -> Callable[[Callable[[Message[T]], Any]], Worker]:
    """Make a worker of a function of a message; `WorkerOptions` explains the options."""
    options = WorkerOptions(
        concurrency=concurrency,
        batch=batch,
        ttl=ttl,
        grace=grace,
        poll=poll,
        longest_pause=longest_pause,
        details=details,
        must_exist=must_exist,
        report_errors=report_errors,
        time_limit=time_limit,
        on_failure=on_failure,
        decoder=decoder,
        middleware=middleware,
    )
    if callable(queue):
        message = '@worker needs the name of the queue: write @worker("orders")'
        raise TypeError(message)
    return partial(Worker, queue=text("queue", queue), options=options)


def _absent(queue: str) -> QueueNotFound:
    return QueueNotFound("No such queue", f"{queue} does not exist, and the worker wants it to")


async def _sleep(seconds: float, stopped: asyncio.Event) -> None:
    """Return after so many seconds, or when the worker stops."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), seconds)
