"""How much of a batch each project may fill, so that no project waits for another.

A request waits for the batch that is being synced and for its own, whatever else is in them. So a
batch takes FEW messages of every project, and ROOM messages beyond these. A request that does not
fit waits for a later batch, in which the waiting projects have their turns one after the other. A
batch after a large one has no such turns if a small request waits for it: that request came while
the large one was written, and must not wait for a second. While only one project sends messages,
its batches have more room, so that it needs fewer of them. Measured: the p99 of a modest project
beside a greedy one was 59 times what it was alone without shares, and 6 times with them.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.posts import NewMessage

FEW = 50
"""Messages that each project may add to a batch, however many the others add."""
ROOM = 40
"""Messages that all projects together may add to a batch beyond these, but for the last post."""
ALONE = 2_000
"""The same while only one project comes."""
_SHARED_FOR = 60.0
"""Seconds for which the smaller room is used after another project came."""
BYTES = 512
"""Bytes of bodies and headers that cost as much as a message."""


def cost_of(message: NewMessage) -> int:
    """The cost of storing a message with its outbox, in messages.

    Its copies enter their queues at a cost of their own (`posting.py`); here they count for the
    bytes by which they are listed until then.
    """
    size, headers = len(message.body), message.headers
    if headers:
        size += sum(map(len, headers)) + sum(map(len, headers.values()))
    return 1 + len(message.copies) // 8 + len(message.outbox) + size // BYTES


class Shares:
    """The shares of the batch that gathers; `durable` makes a future of that batch."""

    def __init__(self, durable: "Callable[[], asyncio.Future[None]]") -> None:
        self._durable = durable
        self._spent: dict[str, int] = {}
        self._room = ALONE
        self._latest = ""
        self._is_shared = False
        self._shared_until = 0.0
        self._lines: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._asked = 0  # how many of those that wait for the batch are requests in these lines
        self._is_large = False  # somebody adds more than a few

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
            self._is_large = True
        self._spent[project] = spent
        return True

    async def wait(self, project: str, cost: int) -> None:
        """Wait until a batch has room for a project's next messages, and count them there.

        Raises Unavailable: a batch before was not written.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(project, deque()).append((cost, turn))
        self._ask_for_batch()
        await turn

    def next_batch(self) -> None:
        """Count anew, because another batch gathers.

        Waiting requests have their turns in it at once, while the one before is written, unless
        that one is large too and several projects come: then `last_call` decides.
        """
        self._spent.clear()
        now = asyncio.get_running_loop().time()
        if self._is_shared:
            self._is_shared, self._shared_until = False, now + _SHARED_FOR
        is_shared = now < self._shared_until
        self._room = ROOM if is_shared else ALONE
        was_large, self._is_large, self._asked = self._is_large, False, 0
        if not (was_large and is_shared):
            self._give_turns()
        if self._lines:
            self._ask_for_batch()

    def last_call(self, awaited: int) -> bool:
        """Give turns in the batch that is about to be written, if nobody else waits for it.

        `awaited` is how many wait. Answers whether any had a turn.
        """
        if self._is_large or awaited > self._asked:
            return False
        self._give_turns()
        return self._is_large

    def _give_turns(self) -> None:
        while self._lines and self._room > 0:
            project = next(iter(self._lines))
            line = self._lines.pop(project)
            cost, turn = line.popleft()
            if line:
                self._lines[project] = line  # behind the others
            if not turn.done():
                self._is_large = True
                self._room -= cost
                self._spent[project] = self._spent.get(project, 0) + cost
                turn.set_result(None)

    def _ask_for_batch(self) -> None:
        """Make sure that a batch is written, even if the requests with a turn add nothing."""
        self._asked += 1
        try:
            self._durable().add_done_callback(self._written)
        except Unavailable as exc:
            self._refuse(exc)

    def _written(self, batch: "asyncio.Future[None]") -> None:
        failure = None if batch.cancelled() else batch.exception()
        if failure is not None:
            self._refuse(failure)

    def _refuse(self, failure: BaseException) -> None:
        """Tell all who wait that no batch is written for them."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for _, turn in line:
                if not turn.done():
                    turn.set_exception(failure)
