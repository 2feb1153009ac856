"""Long work is done in steps, between which the requests of others go on."""

import asyncio

_ROUNDS = 4


class Turns:
    """Lets all long work of a store, or of the service above, take turns, one step at a time.

    Between two steps the event loop makes several rounds: it reads the requests that arrived during
    a step, runs what they do, and answers them. So most requests wait for one step only, however
    many large requests there are.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the next turn, which lasts until the caller awaits something."""
        async with self._lock:
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
