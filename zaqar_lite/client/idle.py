"""How the slots of a worker wait: for messages, after a failure, and until they are to stop."""

import asyncio
import contextlib
import random
import threading


class Idle:
    """Let idle slots look at an empty queue together, and wake all on a find."""

    def __init__(self, longest: float, stopping: threading.Event) -> None:
        self._longest = longest
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

    def __init__(self, longest: float) -> None:
        self._longest = longest
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
