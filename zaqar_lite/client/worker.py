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
import concurrent.futures
import dataclasses
import inspect
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from zaqar_lite.client.arguments import check_fields, options_of, takes, text
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.claims import BaseClaim
from zaqar_lite.client.endpoints.claims import ClaimOptions
from zaqar_lite.client.errors import (
    BadRequest,
    ClaimLost,
    NoDeadLetters,
    QueueNotFound,
    Refused,
    Unreachable,
    Unsupported,
    ZaqarError,
)
from zaqar_lite.client.long_polling import Connection
from zaqar_lite.client.models import Message
from zaqar_lite.client.settlements import MAX_DETAIL, MAX_REASON, Act, Settlement, cut
from zaqar_lite.client.steps import Do, Sleep, Steps
from zaqar_lite.client.termination import stopping_on_signals
from zaqar_lite.client.time_limit import limited, limited_async, stack_of

if TYPE_CHECKING:
    from zaqar_lite.client.async_client import AsyncClient
    from zaqar_lite.client.sync_client import Client
    from zaqar_lite.client.tracing import Tracing

LOG = logging.getLogger(__name__)
T = TypeVar("T")
_QUICK = 1.0
"""Seconds in which a slot has handled a claim that may be larger the next time."""
_SERVE = "use `await worker.serve(AsyncClient(...))`"
Handler = Callable[[Message], Any]
Middleware = Callable[[Message, Handler], Any]


class Retry(Exception):
    """Raised by a handler: try this message again, after so many seconds.

    Without `after` it waits as the queue's `_retry_backoff` says. It counts as a failure.
    """

    def __init__(
        self, after: float | None = None, *, reason: str | None = None, detail: str | None = None
    ) -> None:
        takes("after", after, Real, "a number of seconds (a reason goes into reason=)")
        takes("reason", reason, str)
        takes("detail", detail, str)
        if after is not None and not math.isfinite(after):
            raise ValueError(f"after is a number of seconds, not {after}")
        super().__init__(after, reason)
        self.after = after
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        later = "" if self.after is None else f" in {self.after:g} s"
        return f"try again{later}" + (f": {self.reason}" if self.reason else "")


class Reject(Exception):
    """Raised by a handler: this message is a dead letter now, for no later try can help."""

    def __init__(self, reason: str | None = None, *, detail: str | None = None) -> None:
        takes("reason", reason, str)
        takes("detail", detail, str)
        super().__init__(reason)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"rejected: {self.reason}" if self.reason else "rejected"


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
        batch: most messages per claim, which are handled one after the other. A slot begins with
            one, and goes on with more while a claim takes less than a second, with fewer
            otherwise: what is slow to handle is left to other slots and workers.
        ttl: seconds that a claim lasts without renewal: how long a killed worker's messages wait.
        grace: seconds that a message outlives its claim.
        poll: seconds, about, between two looks at an empty queue where the server does not wait
            (OpenStack's Zaqar), for all slots together; and after a claim that failed.
        longest_pause: seconds; after each failure in a row a slot pauses for a random time that
            doubles up to this, so that a dependency that is down does not use up the attempts of
            every message. `Reject`, and a `Retry` that says when, are followed by no pause.
        details: whether messages carry claim counts, times, headers, attempts and dead-letter
            sources.
        must_exist: whether to refuse to work on a queue that nobody has made, instead of waiting
            for its first message: the name may be mistyped.
        report_errors: whether the text of what a handler raised is stored with the message, as the
            detail of its attempt; it may quote the message, or a secret.
        time_limit: seconds that a handler may take for a message. Then it is interrupted by
            `TimeLimitExceeded` (an async one is cancelled), which counts as a failure. A handler
            that waits inside of a library is interrupted when that returns; until then its claim
            is not renewed, so that its messages come again after `ttl`.
        on_failure: is told about each handler that raised, instead of a traceback in the log.
        decoder: makes of each body what the handler gets as `message.body`; a body that it refuses
            is a failure of the message, with the exception's type as the reason.
        middleware: functions `(message, call_next)` around the handler, the outermost first; each
            returns what `call_next(message)` returned (awaits it, around an async handler).
    """

    concurrency: int = 1
    batch: int = 10
    ttl: int = 300
    grace: int = 60
    poll: float = 1.0
    longest_pause: float = 30.0
    details: bool = False
    must_exist: bool = False
    report_errors: bool = False
    time_limit: float | None = None
    on_failure: Callable[[Message, Exception], None] | None = None
    decoder: Callable[[Any], Any] | None = None
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing would be done.

        Raises:
            TypeError, ValueError: the text names the option.
        """
        check_fields(self)
        for name in ("concurrency", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.time_limit is not None and self.time_limit <= 0:
            raise ValueError("time_limit must be above 0")

    def wrapped(self, handler: Handler, tracing: "Tracing | None" = None) -> Handler:
        """Return the handler inside of the span, the decoder and the middleware."""
        is_async = inspect.iscoroutinefunction(handler)
        for layer in reversed(self.middleware):
            handler = partial(_through, layer, handler)
        decoder = self.decoder
        decoded = handler if decoder is None else lambda one: handler(one.decoded(decoder))
        return decoded if tracing is None else tracing.around(decoded, is_async=is_async)


class _AsyncHandler(TypeError):
    """A thread can't await what a handler, or a middleware, has returned; it ends the worker."""


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
        self._slots: Sequence[_Slot] = ()

    def __call__(self, message: Message) -> Any:  # noqa: ANN401 - the handler's own result
        """Call the handler."""
        return self.handler(message)

    def stop(self) -> None:
        """Finish what is in hand, delete it, release the rest; any thread may call this."""
        for slot in self._slots:
            slot.stopped.hang_up()

    def run(self, client: "Client", *, until_empty: bool = False) -> WorkerStats:
        """Work in threads until SIGTERM, SIGINT or `stop`; or until nothing can be claimed.

        Raises:
            Refused: the server will not let this client work (no right, no such thing).
            TypeError: the handler is async; no message is lost to it.
        """
        if inspect.iscoroutinefunction(self.handler):
            raise TypeError(f"this handler is async: {_SERVE}")
        if inspect.iscoroutinefunction(client.call):
            raise TypeError(
                "run takes a Client: with an AsyncClient use `await worker.serve(client)`"
            )
        if self.options.must_exist and not client.queue_exists(self.queue):
            raise _absent(self.queue)

        failures: list[BaseException] = []

        def work(slot: _Slot) -> None:
            try:
                client._run(slot.work(until_empty=until_empty))
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                failures.append(error)
                self.stop()

        self._begin(client, threading.Lock(), self._call)
        # Not of a pool: the end of a program waits for those, also where a daemon thread runs this.
        threads = [threading.Thread(target=work, args=[slot]) for slot in self._slots]
        with stopping_on_signals(self.stop):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]
        return self.stats

    async def serve(self, client: "AsyncClient", *, until_empty: bool = False) -> WorkerStats:
        """Work in tasks until SIGTERM, SIGINT or `stop`; or until nothing can be claimed.

        A handler that is not async runs in a thread.

        Raises:
            Refused: the server will not let this client work (no right, no such thing).
        """
        if not inspect.iscoroutinefunction(client.call):
            raise TypeError("serve takes an AsyncClient: with a Client use `worker.run(client)`")
        if self.options.must_exist and not await client.queue_exists(self.queue):
            raise _absent(self.queue)
        self._begin(client, asyncio.Lock(), self._call_async)
        tasks = [
            asyncio.ensure_future(client._run(slot.work(until_empty=until_empty)))
            for slot in self._slots
        ]
        with stopping_on_signals(self.stop):
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self.stats

    def _begin(
        self,
        client: BaseClient,
        turn: "threading.Lock | asyncio.Lock",
        call: Callable[[BaseClaim, Message], Any],
    ) -> None:
        self._handle = self.options.wrapped(self.handler, client.tracing)
        self._slots = [_Slot(self, client, turn, call) for _ in range(self.options.concurrency)]

    def give_back(self, claim: BaseClaim, message: Message, error: Exception) -> Steps[bool]:
        """Settle a message whose handler raised; return whether as the handler decided.

        What the server refuses becomes a failure as any other, or is released with the claim.
        """
        decided = outcome_of(message, error, report=self.options.report_errors)
        failure = dataclasses.replace(decided, act=Act.RELEASE, delay=None, failed=True)
        for settlement in (decided, failure):
            try:
                if claim._client.settles:
                    (yield from claim._settle_now(settlement))[0].check()
                    return settlement is decided
            except (Unsupported, NoDeadLetters, BadRequest) as refusal:
                text = "%s of %s comes again, but not as its handler decided: %s"
                LOG.warning(text, message.id, self.queue, refusal)
        claim.skip(message)
        return False

    def _call(self, claim: BaseClaim, message: Message) -> None:
        made = self._limited(claim, message)
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise _AsyncHandler(f"what handles {self.queue} is async: {_SERVE}")

    def _limited(self, claim: BaseClaim, message: Message) -> Any:  # noqa: ANN401 - the handler's
        if (limit := self.options.time_limit) is None:
            return self._handle(message)
        try:
            late = partial(self._late, claim, message)
            return limited(lambda: self._handle(message), limit, late)
        finally:
            claim.keep(renewing=True)

    async def _call_async(self, claim: BaseClaim, message: Message) -> None:
        """Call a handler; one that makes a coroutine without being declared async is awaited, too.

        Raises:
            CancelledError: of asyncio where the worker is cancelled, of futures where the handler
                has met it by itself: that is a failure as any other.
        """
        try:
            if inspect.iscoroutinefunction(self.handler):
                made = self._handle(message)
            else:
                thread = asyncio.ensure_future(asyncio.to_thread(self._limited, claim, message))
                try:
                    made = await asyncio.shield(thread)
                except asyncio.CancelledError:
                    await asyncio.wait([thread])  # nothing ends it before; its message is held
                    failed = thread.cancelled() or thread.exception()
                    if not (failed or inspect.isawaitable(thread.result())):
                        claim.done(message)
                    raise
                if not inspect.isawaitable(made):
                    return
            await limited_async(made, self.options.time_limit)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise concurrent.futures.CancelledError("the handler's own") from error

    def _late(self, claim: BaseClaim, message: Message, thread: int) -> None:
        """Let the claim of a handler that may never return lapse, and log where it is."""
        claim.keep(renewing=False)
        LOG.warning(
            "handler of %s takes longer than %g s for %s; it is at\n%s",
            self.queue,
            self.options.time_limit,
            message.id,
            stack_of(thread),
        )

    def handler_failed(self, message: Message, error: Exception) -> None:
        """Count and log what a handler raised."""
        self.count("failed")
        is_decision = isinstance(error, Retry | Reject)
        LOG.warning(
            "handler of %s failed on %s: %s",
            self.queue,
            message.id,
            error if is_decision else type(error).__name__,
            exc_info=None if is_decision or self.options.on_failure else error,
        )
        if self.options.on_failure is None:
            return
        try:
            self.options.on_failure(message, error)
        except Exception:
            LOG.exception("on_failure of %s failed on %s", self.queue, message.id)

    def claim_failed(self, error: ZaqarError) -> None:
        """Log a lost claim or a server that is away; raise an error that would only come again."""
        never = isinstance(error, Unreachable) and error.permanent
        if never or (isinstance(error, Refused) and not isinstance(error, ClaimLost)):
            raise error
        LOG.warning("worker on %s: %s", self.queue, error)
        if isinstance(error, ClaimLost):
            self.count("lost")

    def count(self, what: str) -> None:
        """Add one to a number, which several threads do."""
        with self._lock:
            setattr(self.stats, what, getattr(self.stats, what) + 1)


@dataclasses.dataclass(eq=False)
class _Slot:
    """Claims and handles messages, again and again, as steps; `stopped` ends its waits.

    One slot at a time has the turn to wait at the server; one that has found something looks again
    at once.
    """

    _worker: Worker
    _client: BaseClient
    _turn: "threading.Lock | asyncio.Lock"
    _call: Callable[[BaseClaim, Message], Any]
    stopped: Connection = dataclasses.field(default_factory=Connection)
    _failures: int = 0  # in a row
    _size: int = 1  # most messages of the next claim

    def work(self, *, until_empty: bool) -> Steps[None]:
        """Return the steps, until the worker stops, or until nothing can be claimed."""
        found, options = until_empty, self._worker.options
        given = {name: getattr(options, name) for name in ("ttl", "grace", "details", "poll")}
        while not self.stopped.over:
            claiming = ClaimOptions(**given, limit=self._size, wait=0 if found else math.inf)
            claim = BaseClaim(self._client, self._worker.queue, claiming, self.stopped)
            try:
                if found:
                    yield from claim.entering()
                else:
                    yield Do(self._turn.acquire)
                    try:
                        yield from claim.entering()
                    finally:
                        self._turn.release()
                found, begun = bool(claim), time.monotonic()
                try:
                    yield from self._handle_all(claim)
                except BaseException as error:
                    yield from claim.leaving(error)
                    raise
                if found:
                    size = self._size * 2 if time.monotonic() - begun < _QUICK else self._size // 2
                    self._size = min(max(size, 1), options.batch)
                yield from claim.leaving(None)
            except ZaqarError as error:
                self._worker.claim_failed(error)
                yield Sleep(options.poll, self.stopped)
            else:
                if until_empty and not found:
                    return

    def _handle_all(self, claim: BaseClaim) -> Steps[None]:
        for message in claim:
            if self.stopped.over:
                return
            try:
                yield Do(self._call, claim, message)
            except _AsyncHandler:
                raise
            except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                self._failures += 1
                self._worker.handler_failed(message, error)
                obeyed = yield from self._worker.give_back(claim, message, error)
                yield Sleep(self._pause(error, obeyed=obeyed), self.stopped)
            else:
                self._failures = 0
                claim.done(message)
                self._worker.count("processed")

    def _pause(self, error: Exception, *, obeyed: bool) -> float:
        """Return the seconds to wait after a failure.

        Where the message becomes what the handler decided there is nothing to wait for.
        """
        later = isinstance(error, Retry) and (error.after or 0) > 0
        if obeyed and (later or isinstance(error, Reject)):
            return 0
        longest: float = min(self._worker.options.longest_pause, 0.5 * 2 ** min(self._failures, 16))
        return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret


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
    options = options_of(WorkerOptions, locals())
    if callable(queue):
        raise TypeError('@worker needs the name of the queue: write @worker("orders")')
    return partial(Worker, queue=text("queue", queue), options=options)


def _absent(queue: str) -> QueueNotFound:
    return QueueNotFound("No such queue", f"{queue} does not exist, and the worker wants it to")


def outcome_of(message: Message, error: Exception, *, report: bool) -> Settlement:
    """Return what becomes of a message whose handler raised this exception.

    For an exception that is neither Retry nor Reject, the reason is its type, and with `report` the
    detail is its text. The reason of a Retry without one is the exception that the handler caught.
    """
    if isinstance(error, Reject):
        return Settlement.dead(message, **_why(error.reason, error.detail))
    if not isinstance(error, Retry):
        why = _why(type(error).__name__, str(error) if report else None)
        return Settlement.release(message, delay=None, failed=True, **why)
    after = None if error.after is None else max(0, math.ceil(error.after))
    why = _why(error.reason or type(error.__cause__ or error).__name__, error.detail)
    return Settlement.release(message, delay=after, failed=True, **why)


def _why(reason: str | None, detail: str | None) -> dict[str, str | None]:
    """Return as much of a reason and a detail as the server takes."""
    return {
        "reason": None if reason is None else cut(reason, MAX_REASON),
        "detail": None if detail is None else cut(detail, MAX_DETAIL),
    }


def _through(layer: Middleware, handler: Handler, message: Message) -> Any:  # noqa: ANN401
    return layer(message, handler)
