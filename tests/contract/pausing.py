"""A pause planted between two steps of a driver, to prove what a race does.

with pause_before(store, "_insert") as pause:
    slow = asyncio.create_task(queue.post("slow"))
    await pause.reached()      # the slow writer has its position, and has stored nothing
    await queue.post("fast")
    pause.go()
    await slow
"""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


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
