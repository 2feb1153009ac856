"""A pause planted between two steps of a driver, to prove what a race does.

async with stopped(pause_before(store, "_insert"), queue.post("slow")) as slow:
    await queue.post("fast")   # the slow writer has its position, and has stored nothing
assert slow.result()           # it has gone on, and ended
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")


class Pause:
    """One call that has been stopped, or will be."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._go = asyncio.Event()

    async def reached(self) -> None:
        """Wait until a call has come to the pause."""
        await asyncio.wait_for(self._reached.wait(), timeout=10)

    def go(self) -> None:
        """Let the call go on."""
        self._go.set()

    async def _stop(self) -> None:
        if not self._reached.is_set():  # the first call alone is stopped
            self._reached.set()
            await asyncio.wait_for(self._go.wait(), timeout=10)


@asynccontextmanager
async def stopped(
    pausing: AbstractContextManager[Pause], act: Awaitable[T]
) -> AsyncIterator[asyncio.Future[T]]:
    """Begin an act, which stands at the pause while the context lasts; then it goes on and ends.

    Raises what the act raises.
    """
    with pausing as pause:
        doing = asyncio.ensure_future(act)
        await pause.reached()
        yield doing
        pause.go()
        await doing


@contextmanager
def pause_before(owner: object, name: str) -> Iterator[Pause]:
    """Stop the first call of the asynchronous method `owner.name` before it does anything."""
    yield from _planted(owner, name, before=True)


@contextmanager
def pause_after(owner: object, name: str) -> Iterator[Pause]:
    """Stop the first call of the asynchronous method `owner.name` when it has done its work."""
    yield from _planted(owner, name, before=False)


def _planted(owner: object, name: str, *, before: bool) -> Iterator[Pause]:
    step = getattr(owner, name)
    pause = Pause()

    async def stopped(*args: Any, **kwargs: Any) -> Any:
        if before:
            await pause._stop()
        result = step(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        if not before:
            await pause._stop()
        return result

    with patch.object(owner, name, stopped):
        yield pause
    assert pause._reached.is_set(), f"nothing has called {name}: the race was not tested"
