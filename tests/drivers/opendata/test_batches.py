"""Operations that share a batch: what is written says what the tables say, whatever meets in it."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE, SECOND, THIRD
from zaqar_lite.domain.errors import Unavailable, ZaqarLiteError
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.models import (
    NO_RETRIES,
    DeadLetter,
    Edit,
    Message,
    Move,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.opendata.engine import Batch

SEEDS = range(40 if "ZAQAR_TEST_ALL" in os.environ else 4)
QUEUES = (QUEUE, OTHER, THIRD)
METADATA = {"_done_retention": 60, "_failed_retention": 60}
RETRIES = RetryPolicy(DeadLetter(THIRD, 2, max_failures=2))


def retries_of(queue: QueueRef) -> RetryPolicy:
    return NO_RETRIES if queue == THIRD else RETRIES


class Chaos:
    """Operations on a store, chosen at random."""

    def __init__(self, store: Store, choose: random.Random) -> None:
        self.store = store
        self.choose = choose
        self.claims: list[tuple[QueueRef, str, list[str]]] = []
        self.imported = 0

    def queue(self) -> QueueRef:
        return self.choose.choice(QUEUES)

    def often(self, share: float) -> bool:
        return self.choose.random() < share

    async def post(self) -> None:
        queue = self.queue()
        others = [one for one in QUEUES if one != queue]
        messages = [
            NewMessage(
                b'"%d"' % self.choose.randrange(9),
                self.choose.choice([HOUR, MINUTE, SECOND]),
                self.choose.choice([0, 0, 0, 2 * SECOND]),
                self.choose.choice([None, None, None, IdempotencyKey("k", b"x" * 16)]),
                {"a": "b"} if self.often(0.3) else None,
                self.choose.choice([100, 1]),
                copies=tuple(Copy(one, HOUR, 0, 7) for one in others if self.often(0.2)),
            )
            for _ in range(self.choose.choice([1, 1, 3, 40]))
        ]
        await self.store.post(*messages, to=queue)

    async def claim(self) -> None:
        queue, limit = self.queue(), self.choose.choice([1, 5, 40])
        claimed = await self.store.claim(
            limit, queue=queue, ttl=self.choose.choice([MINUTE, 2 * SECOND]),
            retries=retries_of(queue), removes=self.often(0.2),
        )  # fmt: skip
        if claimed.claim_id is not None:
            ids = [one.id for one in claimed.messages]
            self.claims.append((queue, claimed.claim_id, ids))

    async def settle(self) -> None:
        if not self.claims:
            return
        queue, claim_id, ids = self.choose.choice(self.claims)
        settlements = [
            Settlement(
                one, self.choose.choice(list(Act)), self.choose.choice([None, 0, SECOND]),
                failed=self.often(0.5), reason="why", ttl_ms=MINUTE,
            )
            for one in ids
            if self.often(0.6)
        ]  # fmt: skip
        await self.store.messages.settle(queue, claim_id, settlements, retries=retries_of(queue))

    async def some(self, queue: QueueRef) -> list[str]:
        found = [one.id for one in await self.store.all_messages(queue)]
        return [one for one in found if self.often(0.5)]

    async def delete(self) -> None:
        queue = self.queue()
        await self.store.messages.delete(queue, await self.some(queue), claim_ids=None)

    async def edit(self) -> None:
        queue = self.queue()
        for one in (await self.some(queue))[:2]:
            edit = Edit(one, b'"edited"', HOUR, self.choose.choice([None, SECOND]))
            await self.store.messages.edit(queue, edit)

    async def import_some(self) -> None:
        clock, store = self.store.clock, self.store.messages
        own_id, now = new_message_id(clock.now_us()), clock.now_ms()
        message = Message(own_id, 0, b"1", HOUR, now, now + HOUR, now, None, 0, "producer")
        self.imported += 1
        await store.import_messages(self.queue(), [message], source="other", number=self.imported)

    async def move(self) -> None:
        queue, target = self.choose.sample(QUEUES, 2)
        await self.store.messages.move(queue, await self.some(queue), Move(target, HOUR))

    async def purge(self) -> None:
        await self.store.messages.purge(self.queue())

    async def create(self) -> None:
        await self.store.management.create_queue(self.queue(), METADATA, max_queues=9)

    async def drop(self) -> None:
        queue = self.queue()
        record = await self.store.management.get_queue(queue)
        if record is not None:
            await self.store.management.delete_queue(queue, version=record.version)
        await self.store.messages.purge(queue, forget=True)

    async def sweep(self) -> None:
        self.store.clock.advance(self.choose.choice([0, SECOND, 5 * SECOND, MINUTE]))
        await self.store.messages.sweep(1_000)

    async def records(self) -> None:
        name = f"n{self.choose.randrange(3)}"
        if self.often(0.5):
            await self.store.management.put_record("kind", "p", name, b"1", expected=None)
        else:
            await self.store.management.delete_record("kind", "p", name)

    async def restart(self) -> None:
        """Let another server open the store; or a commit fail, and what it stored be unknown."""
        store, is_stored = self.store, self.often(0.5)
        commit = store.db.engine.commit
        if self.often(0.5):
            await store.restart()
            return

        async def fail(batch: Batch) -> None:
            if is_stored:
                await commit(batch)
            raise Unavailable("planted")

        with patch.object(store.db.engine, "commit", fail):
            await self.run()
            with suppress(Unavailable):
                await store.post("last")
        while True:
            with suppress(Unavailable):
                await store.messages.ping()
                return
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Do several things at once."""
        works: list[Callable[[], Awaitable[None]]] = [
            *[self.post] * 4,
            *[self.claim] * 3,
            *[self.settle] * 4,
            self.delete,
            self.edit,
            self.import_some,
            self.move,
            self.purge,
            self.create,
            self.drop,
            *[self.sweep] * 2,
            self.records,
        ]
        chosen = self.choose.choices(works, k=self.choose.randint(1, 7))

        async def one(work: Callable[[], Awaitable[None]]) -> None:
            with suppress(ZaqarLiteError):
                await work()

        await asyncio.gather(*map(one, chosen))


@pytest.mark.anyio
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_meets_in_a_batch_is_written_as_the_tables_have_it(
    seed: int, tmp_path: Path
) -> None:
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    chaos = Chaos(store, random.Random(seed))
    async with store:
        for round_ in range(40):
            await chaos.run()
            await check_database(store.db)
            if round_ % 8 == 7:
                await chaos.restart()
