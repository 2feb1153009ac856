"""Random posts, claims and settlements, and what must be there after whatever happened to them.

Noted is what was begun and what was answered. An operation that was not answered may have happened
or not.
"""

import asyncio
import copy
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.store import Store
from tests.drivers.store import OTHER, QUEUE, THIRD, texts
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import Claimed, Message, QueueRef
from zaqar_lite.domain.settlements import Act, Settlement

logger = logging.getLogger(__name__)
QUEUES = (QUEUE, OTHER, THIRD)
_SIZES = (1, 1, 5, 30)
_LARGE = 600
"""Messages of a post that is stored in parts."""


@dataclass
class Load:
    """What was begun and what was answered, by the texts of messages, and the refusals by text."""

    begun: set[str] = field(default_factory=set)
    large: list[set[str]] = field(default_factory=list)
    """The posts that are stored in parts."""
    stored: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)
    """The claims that were answered and that nobody has begun to settle."""
    ending: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)
    is_over: bool = False

    def snapshot(self) -> Self:
        """What was known at this instant."""
        return copy.deepcopy(self)

    @asynccontextmanager
    async def on(self, store: Store, tasks: int = 8, seed: int = 0) -> AsyncIterator[None]:
        """Work on a store while the context lasts, by so many tasks."""
        running = [asyncio.create_task(self._run(store, seed + number)) for number in range(tasks)]
        yield
        self.is_over = True
        await asyncio.gather(*running)

    async def _run(self, store: Store, seed: int) -> None:
        chance = random.Random(seed)
        while not self.is_over:
            queue = chance.choice(QUEUES)
            try:
                if chance.random() < 0.5:
                    is_large = chance.random() < 0.02
                    count = _LARGE if is_large else chance.choice(_SIZES)
                    await self._post(store, queue, count, chance)
                else:
                    await self._consume(store, queue, chance)
            except Unavailable as exc:
                self.refusals[exc.shown] += 1
                logger.warning("refused: %s", exc)  # with the store's reason
                await asyncio.sleep(0.01)

    async def _post(self, store: Store, queue: QueueRef, count: int, chance: random.Random) -> None:
        new = [f"{chance.getrandbits(64):016x}" for _ in range(count)]
        self.begun.update(new)
        if count == _LARGE:
            self.large.append(set(new))
        await store.post(*new, to=queue)
        self.stored.update(new)

    async def _consume(self, store: Store, queue: QueueRef, chance: random.Random) -> None:
        claimed = await store.claim(chance.randint(1, 20), queue=queue)
        if claimed.claim_id is None:
            return
        self.held.update(dict.fromkeys(texts(claimed), claimed.claim_id))
        if chance.random() < 0.8:
            await self._settle(store, queue, claimed, chance)

    async def _settle(
        self, store: Store, queue: QueueRef, claimed: Claimed, chance: random.Random
    ) -> None:
        """Acknowledge some messages, give others back, and keep the rest."""
        done: list[Message] = []
        back: list[Message] = []
        for one in claimed.messages:
            kind = chance.random()
            if kind < 0.9:
                (done if kind < 0.7 else back).append(one)
        for text in texts(Claimed(None, [*done, *back])):
            self.held.pop(text, None)
        gone = texts(Claimed(None, done))
        self.ending.update(gone)
        settlements = [Settlement(one.id, Act.ACK) for one in done]
        settlements += [Settlement(one.id, Act.RELEASE, failed=True) for one in back]
        await store.messages.settle(queue, claimed.claim_id or "", settlements)
        self.deleted.update(gone)

    async def violations(self, store: Store) -> list[str]:
        """Compare a store with what was answered before it was opened, or since.

        Claims whatever is ready.
        """
        found: Counter[str] = Counter()
        await store.messages.sweep(1)  # it finishes large posts
        for queue in QUEUES:
            found.update(await store.bodies(queue))
        seen = found.keys() | self.stored | self.ending | self.held.keys()
        parts = [len(one & seen) / len(one) for one in self.large]
        wrong = [f"{part:.0%} of a post is there" for part in parts if 0 < part < 1]
        wrong += [f"lost: {text}" for text in self.stored - self.ending if not found[text]]
        wrong += [f"twice: {text}" for text, count in found.items() if count > 1]
        wrong += [f"invented: {text}" for text in found if text not in self.begun]
        wrong += [f"undone: {text}, which was deleted" for text in self.deleted if found[text]]
        for queue in QUEUES:
            while (claimed := await store.claim(500, queue=queue)).claim_id:
                both = self.held.keys() & set(texts(claimed))
                wrong += [f"held by {self.held[text]}: {text} was handed out" for text in both]
        await check_database(store.db)
        return wrong
