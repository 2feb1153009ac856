"""Waiting for what comes about beside a test: in another task, thread or process."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.service.background import Worker

T = TypeVar("T")


@overload
async def until(
    look: Callable[[], Awaitable[T]], enough: Callable[[T], object] = bool, *, seconds: float = 30
) -> T: ...


@overload
async def until(
    look: Callable[[], T], enough: Callable[[T], object] = bool, *, seconds: float = 30
) -> T: ...


async def until(
    look: Callable[[], Any], enough: Callable[[Any], object] = bool, *, seconds: float = 30
) -> Any:
    """Look again and again until it is enough; what was seen last is the assertion's text."""
    end = time.monotonic() + seconds
    while True:
        seen = look()
        found = await seen if inspect.isawaitable(seen) else seen
        if enough(found):
            return found
        assert time.monotonic() < end, f"never came: {str(found)[:500]}"
        await asyncio.sleep(0.01)


async def rounds_beside(work: Awaitable[T]) -> tuple[int, T]:
    """How often the event loop goes round while something is done, and what comes of that."""
    task, rounds = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        rounds += 1
    return rounds, await task


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """Let a worker in the background go on beside the block."""
    worker.start()
    try:
        yield
    finally:
        await worker.stop()


async def until_available(act: Callable[[], Awaitable[T]], *, seconds: float = 30) -> T:
    """Do something again and again until a store that is away does it."""
    end = time.monotonic() + seconds
    while True:
        try:
            return await act()
        except Unavailable:
            assert time.monotonic() < end, "the store does not recover"
            await asyncio.sleep(0.02)
