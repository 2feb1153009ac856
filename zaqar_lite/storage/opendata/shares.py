"""How much each project may add to a batch, so that one project does not slow down the others.

A request waits for the batch that is being written and for its own, whatever else is in them. So a
batch takes FEW messages of every project, and ROOM messages beyond these. A request that does not
fit waits for a later batch, in which the waiting projects have their turns one after the other.
While only one project sends messages, its batches have more room, so that it needs fewer of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from zaqar_lite.domain.posts import NewMessage

FEW = 50
"""Messages that each project may add to a batch, however many the others add."""
ROOM = 120
"""Messages that all projects together may add to a batch beyond these, but for the last post."""
ALONE = 2_000
"""The same while only one project comes."""
_SHARED_FOR = 60.0
"""Seconds for which the smaller room is used after another project came."""
_BYTES = 512
"""Bytes of bodies that cost as much as a message."""


def cost_of(messages: Sequence[NewMessage]) -> int:
    """The cost of storing messages, their copies and their companions, in messages."""
    cost = size = 0
    for message in messages:
        cost += 1 + len(message.copies) + len(message.companions)
        size += len(message.body)
    return cost + size // _BYTES


class Shares:
    """The shares of the batch that gathers; `durable` waits for that batch."""

    def __init__(self, durable: "Callable[[], asyncio.Future[None]]") -> None:
        self._durable = durable
        self._spent: dict[str, int] = {}
        self._room = ALONE
        self._latest = ""
        self._is_shared = False
        self._shared_until = 0.0
        self._lines: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    def joins(self, project: str, cost: int) -> bool:
        """Count `cost` for a project; answer False, and count nothing, where it has to `wait`."""
        if project != self._latest:
            self._is_shared = bool(self._latest)
            self._latest = project
        spent = self._spent.get(project, 0) + cost
        if spent > FEW:
            if self._lines or self._room <= 0:
                return False
            self._room -= cost
        self._spent[project] = spent
        return True

    async def wait(self, project: str, cost: int) -> None:
        """Wait until a batch has room for a project's next messages, and count them there.

        Raises Unavailable: a batch before was not written.
        """
        self._ask_for_batch()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(project, deque()).append((cost, turn))
        await turn

    def next_batch(self) -> None:
        """Count anew, because another batch gathers; waiting requests have their turns first."""
        self._spent.clear()
        now = asyncio.get_running_loop().time()
        if self._is_shared:
            self._is_shared, self._shared_until = False, now + _SHARED_FOR
        self._room = ROOM if now < self._shared_until else ALONE
        while self._lines and self._room > 0:
            project = next(iter(self._lines))
            line = self._lines.pop(project)
            cost, turn = line.popleft()
            if line:
                self._lines[project] = line  # behind the others
            if not turn.done():
                self._room -= cost
                self._spent[project] = self._spent.get(project, 0) + cost
                turn.set_result(None)
        if self._lines:
            self._ask_for_batch()

    def _ask_for_batch(self) -> None:
        """Make sure that a batch is written, even if the requests with a turn add nothing."""
        self._durable().add_done_callback(self._written)

    def _written(self, batch: "asyncio.Future[None]") -> None:
        failure = None if batch.cancelled() else batch.exception()
        if failure is None:
            return
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for _, turn in line:
                if not turn.done():
                    turn.set_exception(failure)
