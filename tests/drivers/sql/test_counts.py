"""Random operations on memory:// and embedded://: the counts are what is there, and all goes.

What the tables must say is in `tables.py`; here it is asked in the middle of everything that there
is: copies, groups, keys, dead letters, history, moves, edits, purges and drops.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.store import Store
from tests.drivers.sql.tables import sizes
from tests.drivers.store import HOUR, MINUTE, SECOND
from zaqar_lite.domain.attempts import Backoff
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, ZaqarLiteError
from zaqar_lite.domain.groups import GROUP_HEADER
from zaqar_lite.domain.metadata import DONE_RETENTION, FAILED_RETENTION
from zaqar_lite.domain.models import (
    ClaimRequest,
    DeadLetter,
    DelayMode,
    Edit,
    ListQuery,
    Move,
    QueueRef,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import Copy, NewMessage, identify
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.messages import SqlMessageStore

pytestmark = pytest.mark.anyio
REFS = tuple(QueueRef(f"project-{number % 2}", f"queue-{number}") for number in range(5))
STEPS = 300
OPERATIONS = {"post": 4, "claim": 3, "settle": 2} | dict.fromkeys(
    (
        *("release", "renew", "pop", "move", "edit", "delete", "stats", "list", "sweep", "wait"),
        *("release_delayed", "purge", "drop", "record"),
    ),
    1,
)
"""What is done, and how often beside the others."""


class Chaos:
    """Does one thing after another to a few queues, and remembers ids to do it with."""

    def __init__(
        self, messages: MessageStore, management: ManagementStore, clock: Clock, seed: int
    ) -> None:
        self.messages = messages
        self.management = management
        self.clock = clock
        self.chance = random.Random(seed)
        self.ids: dict[QueueRef, list[str]] = {ref: [] for ref in REFS}
        self.claims: list[tuple[QueueRef, str, list[str]]] = []

    async def step(self) -> str:
        """Do something; answer what."""
        (what,) = self.chance.choices(list(OPERATIONS), list(OPERATIONS.values()))
        try:
            await getattr(self, what)(self.chance.choice(REFS))
        except ZaqarLiteError as exc:
            return f"{what}: {exc}"
        return what

    def some(self, ref: QueueRef, most: int = 5) -> list[str]:
        known = list(dict.fromkeys(self.ids[ref]))
        return self.chance.sample(known, min(len(known), self.chance.randint(1, most)))

    def message(self, ref: QueueRef) -> NewMessage:
        body = json.dumps("x" * self.chance.choice((5, 300))).encode()
        copies: tuple[Copy, ...] = ()
        if self.chance.random() < 0.2:
            others = [one for one in REFS if one != ref and one.project == ref.project]
            copies = tuple(
                Copy(one, self.ttl(), self.delay(), self.chance.randint(1, 200))
                for one in self.chance.sample(others, self.chance.randint(1, len(others)))
            )
        key = None
        if self.chance.random() < 0.3:
            key = identify(ref, f"key-{self.chance.randrange(40)}", [b"any"])
        headers = None
        if self.chance.random() < 0.3:
            headers = {GROUP_HEADER: f"group-{self.chance.randrange(3)}"}
        priority = self.chance.randint(1, 200)
        return NewMessage(body, self.ttl(), self.delay(), key, headers, priority, copies)

    def ttl(self) -> int:
        return self.chance.choice((30 * SECOND, 10 * MINUTE, HOUR))

    def delay(self) -> int:
        return self.chance.choice((0, 0, 0, 10 * SECOND, 5 * MINUTE))

    def retries(self, ref: QueueRef) -> RetryPolicy:
        target = self.chance.choice((None, *(one for one in REFS if one.project == ref.project)))
        letter = DeadLetter(None if target == ref else target, max_claims=3, max_failures=2)
        return RetryPolicy(letter, Backoff((5 * SECOND, MINUTE), 0.0))

    async def post(self, ref: QueueRef) -> None:
        count = self.chance.choice((1, 1, 3, 20, 700))
        key = None
        if self.chance.random() < 0.2:
            key = identify(ref, f"batch-{self.chance.randrange(10)}", [b"any"])
        posted = await self.messages.post(
            ref,
            [self.message(ref) for _ in range(count)],
            client_id=f"client-{self.chance.randrange(3)}",
            batch_key=key,
            version=None,
        )
        self.ids[ref] = (self.ids[ref] + [one.id for one in posted])[-1_000:]

    def request(self, ref: QueueRef) -> ClaimRequest:
        return ClaimRequest(
            self.chance.choice((1, 10, 100)),
            None,
            self.chance.choice(list(DelayMode)),
            ttl_ms=self.chance.choice((20 * SECOND, 10 * MINUTE)),
            grace_ms=MINUTE,
            client_id="consumer",
            retries=self.retries(ref),
        )

    async def claim(self, ref: QueueRef) -> None:
        claimed = await self.messages.claim(ref, self.request(ref))
        if claimed.claim_id is not None:
            held = [one.id for one in claimed.messages]
            self.claims.append((ref, claimed.claim_id, held))

    async def pop(self, ref: QueueRef) -> None:
        await self.messages.claim(ref, replace(self.request(ref), removes=True))

    async def settle(self, _: QueueRef) -> None:
        if not self.claims:
            return
        ref, claim_id, held = self.chance.choice(self.claims)
        settlements = [self.settlement(one) for one in held if self.chance.random() < 0.7]
        await self.messages.settle(ref, claim_id, settlements, retries=self.retries(ref))

    def settlement(self, message_id: str) -> Settlement:
        act = self.chance.choice(list(Act))
        if act is Act.EXTEND:
            return Settlement(message_id, act, ttl_ms=self.ttl(), grace_ms=MINUTE)
        if act is Act.RELEASE:
            failed = self.chance.random() < 0.5
            return Settlement(message_id, act, delay_ms=self.delay(), failed=failed)
        return Settlement(message_id, act)

    async def release(self, _: QueueRef) -> None:
        if self.claims:
            ref, claim_id, _held = self.chance.choice(self.claims)
            await self.messages.settle(ref, claim_id, Settlement("", Act.RELEASE, self.delay()))

    async def renew(self, _: QueueRef) -> None:
        if self.claims:
            ref, claim_id, _held = self.chance.choice(self.claims)
            await self.messages.settle(
                ref, claim_id, Settlement("", Act.EXTEND, ttl_ms=self.ttl(), grace_ms=MINUTE)
            )

    async def move(self, ref: QueueRef) -> None:
        target = self.chance.choice([one for one in REFS if one != ref])
        wanted, reset = self.some(ref, 20), self.chance.random() < 0.5
        await self.messages.move(ref, wanted, Move(target, self.ttl(), self.delay(), reset))
        self.ids[target] += wanted

    async def edit(self, ref: QueueRef) -> None:
        for message_id in self.some(ref, 1):
            body = self.chance.choice((None, b'"edited"'))
            edit = Edit(message_id, body, self.ttl(), self.chance.choice((None, 0, MINUTE)))
            await self.messages.edit(ref, edit)

    async def delete(self, ref: QueueRef) -> None:
        claims = self.chance.choice((None, [claim_id for _, claim_id, _ in self.claims]))
        await self.messages.delete(ref, self.some(ref, 20), claim_ids=claims)

    async def stats(self, ref: QueueRef) -> None:
        await self.messages.stats(ref)

    async def list(self, ref: QueueRef) -> None:
        await self.messages.list_messages(ref, ListQuery(10, include_claimed=True))

    async def sweep(self, _: QueueRef) -> None:
        async def retries_of(ref: QueueRef) -> RetryPolicy:
            return self.retries(ref)

        await self.messages.sweep(self.chance.choice((10, 1_000)), retries_of)

    async def wait(self, _: QueueRef) -> None:
        self.clock.advance(self.chance.choice((SECOND, 15 * SECOND, 2 * MINUTE)))

    async def release_delayed(self, ref: QueueRef) -> None:
        await self.messages.release_delayed(ref, 20)

    async def purge(self, ref: QueueRef) -> None:
        if self.chance.random() < 0.2:
            await self.messages.purge(ref)

    async def drop(self, ref: QueueRef) -> None:
        if self.chance.random() < 0.2:
            await self.messages.purge(ref, forget=True)

    async def record(self, ref: QueueRef) -> None:
        known = await self.management.get_queue(ref)
        if known is not None and self.chance.random() < 0.3:
            await self.management.delete_queue(ref, version=known.version)
            return
        metadata = {DONE_RETENTION: 60, FAILED_RETENTION: self.chance.choice((0, 300))}
        await self.management.create_queue(ref, metadata, max_queues=100)


@pytest.fixture(params=["memory", "embedded"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[SqlMessageStore, ManagementStore, Clock]]:
    """The two stores, open, and their clock."""
    clock = Clock()
    uri = "memory://" if request.param == "memory" else f"embedded://{tmp_path / 'data'}"
    options = StoreOptions(max_messages=5_000, max_idempotency_keys=200)
    messages, management = create(uri, clock=clock, options=options)
    assert isinstance(messages, SqlMessageStore)
    await messages.open()
    yield messages, management, clock
    await messages.close()


@pytest.mark.parametrize("seed", range(12 if "ZAQAR_TEST_ALL" in os.environ else 3))
async def test_counts_are_what_is_there(
    stores: tuple[SqlMessageStore, ManagementStore, Clock], seed: int
) -> None:
    messages, management, clock = stores
    chaos, done = Chaos(messages, management, clock, seed), []
    for number in range(STEPS):
        done.append(await chaos.step())
        if number % 10 == 0:
            try:
                await check_database(messages._db)
            except AssertionError as exc:
                raise AssertionError(f"after {done[-12:]}: {exc}") from exc
    for ref in REFS:
        record = await management.get_queue(ref)
        if record is not None:
            await management.delete_queue(ref, version=record.version)
        await messages.purge(ref, forget=True)
    for _ in range(100):
        if not (await messages.sweep(1_000)).total:
            break
    await check_database(messages._db)
    assert sizes(messages._db.connection) == {}
    assert not messages._db.undone, "what is refused after it has written undoes its batch"


async def test_time_alone_ends_everything(
    stores: tuple[SqlMessageStore, ManagementStore, Clock],
) -> None:
    """Without a record, and when all has expired and is forgotten, no row is left of a queue."""
    messages, management, clock = stores
    chaos = Chaos(messages, management, clock, 7)
    for _ in range(STEPS):
        await chaos.step()
    for ref in REFS:
        record = await management.get_queue(ref)
        if record is not None:
            await management.delete_queue(ref, version=record.version)
    for _ in range(200):
        clock.advance(HOUR)
        if not (await messages.sweep(1_000)).total and not sizes(messages._db.connection):
            break
    await check_database(messages._db)
    assert sizes(messages._db.connection) == {}


async def test_a_large_post_has_room_reserved_from_its_first_step_on(
    stores: tuple[SqlMessageStore, ManagementStore, Clock],
) -> None:
    """Copies that come while it enters its queue do not take it, and what they may is theirs."""
    messages, _, _ = stores
    queue, source = REFS[0], REFS[2]
    copied = NewMessage(b"1", HOUR, 0, copies=(Copy(queue, HOUR, 0, 100),))

    async def post(ref: QueueRef, *new: NewMessage) -> bool:
        try:
            await messages.post(ref, new, client_id="producer", version=None)
        except LimitReached:
            return False
        return True

    large = asyncio.create_task(post(queue, *[NewMessage(b"1", HOUR, 0)] * 4_900))
    while not ((found := messages._db.queue(queue)) and found.reserved):  # noqa: ASYNC110 - a poll
        await asyncio.sleep(0)
    answers = await asyncio.gather(*[post(source, *[copied] * 60) for _ in range(3)])
    assert [await large, *answers] == [True, True, False, False]
    assert (await messages.stats(queue)).total == 4_960
    assert await post(source, *[copied] * 40)
    assert not await post(source, copied)


async def test_a_purge_of_many_is_one_row_and_its_garbage_goes(tmp_path: Path) -> None:
    async with Store(tmp_path / "data") as store:
        ref = QueueRef("project", "many")
        for _ in range(20):
            await store.post(*["text"] * 1_000, to=ref)
        before = store.db.connection.total_changes()
        await store.messages.purge(ref)
        assert store.db.connection.total_changes() - before <= 3  # garbage, the queue, the counter
        assert (await store.messages.stats(ref)).total == 0
        await store.post("new", to=ref)
        assert sizes(store.db.connection)["entry"] == 20_001
        await store.sweep()
        assert sizes(store.db.connection) == {"entry": 1, "body": 1, "queue": 1}
        before = store.db.connection.total_changes()
        await store.messages.purge(ref, forget=True)
        assert store.db.connection.total_changes() - before <= 4
        await store.sweep()
        assert sizes(store.db.connection) == {}
