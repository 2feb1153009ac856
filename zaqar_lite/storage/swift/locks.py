"""The lock of a queue: in this process, and through tooz where several processes share the store.

Swift has no compare-and-swap, so whatever reads and then writes does it under the queue's lock.
A lease bounds how long the lock outlives a holder that is gone. The holder stops writing when half
of it is over, counted from before the lock was asked for, so that nothing it sent lands when
another may hold the lock; what it wrote until then stays as it is.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tooz import ToozError
from tooz.coordination import get_coordinator

from zaqar_lite.domain.addresses import without_secrets
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.swift.connection import UNBOUNDED

_log = logging.getLogger(__name__)
PATIENCE = 20.0
_ANSWER = 5.0
"""Seconds in which the coordination service has to answer; its clients may try for longer."""
_POLL = 0.1
"""At most so many seconds pass before a process asks again for a lock that another one holds."""
SECOND = 0.5
"""Seconds for which a holder of one lock waits for a second one, before it frees the first."""
_TURN = 1.0
"""After so many seconds a process that takes one lock again and again pauses for the others: they
ask for it only now and then, and would hardly ever find it free.
"""
_MAX_TURNS = 10_000
_SAFETY = 10
"""A lease should be this many times the longest claim; the log warns when it is less."""
T = TypeVar("T")


class Busy(Unavailable):
    """Others held the lock for too long."""

    def __init__(self) -> None:
        super().__init__("The queue is busy: its lock was not free in time.", retry_after=2)


@dataclass(slots=True)
class Lease:
    """The right to write to one queue, while its lock is held."""

    until: float
    """The instant, in monotonic seconds, from which on nothing may be written any more."""
    lost: bool = False
    """Whether the lock was lost before it was freed, or that could not be found out."""


class Locks:
    """Locks by name within this process, fair and without a lease."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Connect to the coordination service, where there is one."""

    async def close(self) -> None:
        """Wait for those who hold a lock."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def ping(self) -> None:
        """Return when locks can be taken.

        Raises:
            Unavailable: they can't.
        """

    async def run(
        self,
        name: str,
        work: Callable[[Lease], Awaitable[T]],
        *,
        within: str | None = None,
        exclusive: bool = False,
    ) -> T:
        """Do `work` under a lock, to its end even when the caller is cancelled.

        The lock `within` is taken before that, so that racing makers can't pass a bound.

        A request that was given up must not leave threads that write after the lock is free. Where
        the work raises Busy, because others hold a second lock that it needs and may wait for this
        one, it is begun again after a moment.

        Raises:
            Unavailable: the lock was not free in time; or the work is `exclusive`, and the lock may
                have been lost before it was done.
        """

        async def locked() -> T:
            give_up = time.monotonic() + PATIENCE
            while True:
                first = nullcontext() if within is None else self.hold(within)
                try:
                    async with first, self.hold(name) as lease:
                        done = await work(lease)
                    break
                except Busy:
                    if time.monotonic() >= give_up:
                        raise
                await asyncio.sleep(random.uniform(2 * _POLL, 4 * _POLL))  # noqa: S311 - no secret
            if exclusive and lease.lost:
                raise Unavailable(
                    "The queue's lock was lost while it was held: the coordination service was "
                    "away, or took too long. A claim that was being made lapses by its ttl.",
                    retry_after=5,
                )
            return done

        task = asyncio.create_task(locked())
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def hold(
        self, name: str, *, turn: float = _TURN, patience: float = PATIENCE
    ) -> AsyncIterator[Lease]:
        """Hold the lock; `run` is what keeps a cancelled caller from freeing it too early.

        A process that has had it again and again for `turn` seconds lets the others have it first.

        Raises:
            Busy: it was not free within `patience` seconds.
        """
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            await asyncio.wait_for(lock.acquire(), patience)
        except TimeoutError as exc:
            raise Busy from exc
        try:
            async with self._outside(name, turn, patience) as lease:
                yield lease
        finally:
            lock.release()

    @asynccontextmanager
    async def _outside(self, name: str, turn: float, patience: float) -> AsyncIterator[Lease]:
        """Hold what other processes must not hold meanwhile; nothing where there are none."""
        yield Lease(UNBOUNDED)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # read it, so that asyncio logs nothing; the caller has it too


class SharedLocks(Locks):
    """The same, and the same lock in a coordination service for all server processes."""

    def __init__(self, url: str, lease: float, prefix: str) -> None:
        super().__init__()
        self._url, self._lease, self._prefix = url, lease, prefix
        self._coordinator: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._turns: dict[str, tuple[float, float]] = {}
        """For each lock since when this process takes it repeatedly, and when it freed it last."""

    async def open(self) -> None:
        """Connect; idempotent."""
        if self._coordinator is not None:
            return
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="lock")
        try:
            coordinator = get_coordinator(self._url, uuid.uuid4().bytes)
            await self._in_thread(coordinator.start)
        except (ImportError, ValueError, RuntimeError) as exc:  # stevedore, for a scheme
            self._pool.shutdown()
            raise ConfigurationError(
                f"coordination_url can't be used: {self._safe_text(exc)}. It needs the client of "
                "its service (redis, etcd3gw, ...) beside zaqar-lite[swift]."
            ) from exc
        except (ToozError, TimeoutError) as exc:
            self._pool.shutdown(wait=False)
            raise Unavailable(
                "The coordination service does not answer.", detail=self._safe_text(exc)
            ) from exc
        self._coordinator = coordinator

    def _safe_text(self, exc: Exception) -> str:
        """The text of a client's error, or its name, without the secrets of the URL."""
        return without_secrets(str(exc) or type(exc).__name__, self._url)

    async def close(self) -> None:
        """Wait for those who hold a lock, and disconnect; idempotent."""
        await super().close()
        if self._coordinator is not None and self._pool is not None:
            with suppress(Exception):  # the service may be gone
                await self._in_thread(self._coordinator.stop)
            self._coordinator = None
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def ping(self) -> None:
        """Take and free a lock of our own."""
        async with self.hold(f"{self._prefix}.ping.{uuid.uuid4().hex}"):
            pass

    @asynccontextmanager
    async def _outside(self, name: str, turn: float, patience: float) -> AsyncIterator[Lease]:
        if self._coordinator is None:
            raise Unavailable("The Swift store is closed.")
        lock = self._coordinator.get_lock(name.encode())
        began, ended = self._turns.get(name, (0.0, 0.0))
        if time.monotonic() - ended > _POLL:
            began = time.monotonic()
        elif time.monotonic() - began > turn:
            await asyncio.sleep(2 * _POLL)
            began = time.monotonic()
        started = await self._acquire(lock, patience)
        lease = Lease(started + self._lease / 2)
        try:
            yield lease
        finally:
            self._note_length(time.monotonic() - started)
            lease.lost = not await self._let_go(lock)
            if len(self._turns) >= _MAX_TURNS:
                self._turns.clear()
            self._turns[name] = (began, time.monotonic())

    def _note_length(self, held: float) -> None:
        if held * _SAFETY > self._lease:
            _log.warning(
                "a queue's lock was held for %.1f s: raise the option 'lease' from %g to %.0f s or "
                "more, or find out why Swift is slow",
                held,
                self._lease,
                held * _SAFETY,
            )

    async def _acquire(self, lock: Any, patience: float) -> float:  # noqa: ANN401 - tooz
        """Take the lock; answer the instant from which its lease counts at the latest."""
        give_up = time.monotonic() + patience
        pause = 0.005
        while True:
            started = time.monotonic()
            try:
                if await self._in_thread(lock.acquire, False, late=lock.release):
                    return started
            except Exception as exc:
                raise Unavailable(
                    "The coordination service does not answer, so nothing can be claimed or "
                    "written.",
                    retry_after=5,
                    detail=self._safe_text(exc),
                ) from exc
            if time.monotonic() >= give_up:
                raise Busy
            pause = min(pause * 1.5, _POLL)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - spreads load

    async def _let_go(self, lock: Any) -> bool:  # noqa: ANN401 - tooz
        """Free the lock; False when it was lost before, or that can't be found out."""
        try:
            return bool(await self._in_thread(lock.release))
        except Exception as exc:  # noqa: BLE001 - every client library has its own tree
            _log.warning("the lock could not be freed: %s", type(exc).__name__)
            return False

    async def _in_thread(
        self,
        step: Callable[..., T],
        *args: Any,  # noqa: ANN401 - tooz
        late: Callable[[], Any] | None = None,
    ) -> T:
        """Run a step of tooz; give it up after a while, and do `late` if it succeeds after that.

        Raises:
            TimeoutError: no answer in time.
        """
        pool = self._pool
        if pool is None:
            raise Unavailable("The Swift store is closed.")
        started = pool.submit(step, *args)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(started)), _ANSWER)
        except (TimeoutError, asyncio.CancelledError):

            def undo(done: Future[T]) -> None:
                """Free a lock that was granted too late: its lease would go on."""
                if done.cancelled() or done.exception() or late is None:
                    return
                if done.result():
                    late()

            started.add_done_callback(undo)
            raise
