"""Operations at random that share batches, and records at random that say something else.

What a batch writes says what the tables say, whatever meets in it. Beside that, nobody is handed
what another holds, and what was acknowledged never comes back.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.drivers.opendata.contract_hooks import check_database, snapshot
from tests.drivers.opendata.rfc import encode_metadata, merged_pages
from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE, SECOND, THIRD
from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
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
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage, OutboxEntry
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.storage.opendata import recorder
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.slatedb.binding import slatedb

SEEDS = range(60 if "ZAQAR_TEST_ALL" in os.environ else 4)
LETTERS = QueueRef("project", "letters")
FILTERED = QueueRef("project", "filtered")
QUEUES = (QUEUE, OTHER, THIRD, LETTERS)
METADATA = {"_done_retention": 60, "_failed_retention": 60}
RETRIES = {
    QUEUE: RetryPolicy(DeadLetter(LETTERS, 2, ttl_ms=HOUR, max_failures=2)),
    OTHER: RetryPolicy(DeadLetter(None, 2)),
    THIRD: RetryPolicy(DeadLetter(LETTERS, 3)),
}


async def retries_of(queue: QueueRef) -> RetryPolicy:
    return RETRIES.get(queue, NO_RETRIES)


class Chaos:
    """Operations on a store, chosen at random.

    `leases` are the messages that somebody holds for sure, and until when; `over` are those that
    were acknowledged, or deleted.
    """

    def __init__(self, store: Store, choose: random.Random) -> None:
        self.store = store
        self.choose = choose
        self.claims: list[tuple[QueueRef, str, list[str]]] = []
        self.leases: dict[tuple[QueueRef, str], int] = {}
        self.over: set[str] = set()
        self.gone: list[Message] = []
        self.imported = 0

    def queue(self) -> QueueRef:
        return self.choose.choice(QUEUES)

    def often(self, share: float) -> bool:
        return self.choose.random() < share

    def key(self) -> IdempotencyKey | None:
        text = self.choose.choice(["k", "l", "m"])
        return IdempotencyKey(text, text.encode() * 16) if self.often(0.2) else None

    # -- operations --

    async def post(self) -> None:
        queue, choose = self.queue(), self.choose
        others = [one for one in QUEUES if one != queue]
        messages = [
            NewMessage(
                b'"%d"' % choose.randrange(9),
                choose.choice([HOUR, MINUTE, SECOND]),
                choose.choice([0, 0, 0, 2 * SECOND]),
                self.key(),
                choose.choice([None, None, {"a": "b"}, {"sys.client": "x", "queue": "y"}]),
                choose.choice([100, 1]),
                tuple(Copy(one, HOUR, choose.choice([0, SECOND]), 7)
                      for one in others if self.often(0.2)),
                tuple(OutboxEntry(one, b'"%s"' % bytes(32).hex()[:32].encode(), 1, HOUR)
                      for one in others if self.often(0.1)),
            )
            for _ in range(choose.choice([1, 1, 3, 40, 150 if self.often(0.1) else 2]))
        ]  # fmt: skip
        await self.store.messages.post(
            queue, messages, client_id=choose.choice(["producer", ""]),
            batch_key=self.key(), version=None,
        )  # fmt: skip

    async def claim(self) -> None:
        queue, limit = self.queue(), self.choose.choice([1, 5, 40])
        ttl, removes = self.choose.choice([MINUTE, 2 * SECOND]), self.often(0.2)
        began = self.store.clock.now_ms()
        claimed = await self.store.claim(
            limit, queue=queue, ttl=ttl, retries=await retries_of(queue), removes=removes,
            client=self.choose.choice(["worker", "another"]),
        )  # fmt: skip
        ids = [one.id for one in claimed.messages]
        assert not self.over.intersection(ids), "an acknowledged message came back"
        for one in ids:
            assert self.leases.get((queue, one), 0) <= began, "two hold a message"
        if removes:
            self.over.update(ids)
        elif claimed.claim_id is not None:
            self.leases.update({(queue, one): began + ttl for one in ids})
            self.claims.append((queue, claimed.claim_id, ids))

    def free(self, queue: QueueRef, ids: list[str]) -> None:
        """Note that somebody may be handed these from now on."""
        for one in ids:
            self.leases.pop((queue, one), None)

    async def settle(self) -> None:
        if not self.claims:
            return
        queue, claim_id, ids = self.choose.choice(self.claims)
        wanted = [
            Settlement(
                one, self.choose.choice([*Act, Act.ACK, Act.ACK]),
                self.choose.choice([None, 0, SECOND]),
                failed=self.often(0.5), reason="why", ttl_ms=MINUTE,
            )
            for one in ids
            if self.often(0.6)
        ]  # fmt: skip
        self.free(queue, [one.message_id for one in wanted])
        policy = await retries_of(queue)
        done = await self.store.messages.settle(queue, claim_id, wanted, retries=policy)
        for one, outcome in zip(wanted, done.outcomes, strict=True):
            if one.act is Act.ACK and outcome is Outcome.DONE:
                self.over.add(one.message_id)

    async def end_claim(self) -> None:
        """Release or renew all that a claim holds."""
        if not self.claims:
            return
        queue, claim_id, ids = self.choose.choice(self.claims)
        self.free(queue, ids)
        act = self.choose.choice([Act.RELEASE, Act.EXTEND])
        wanted = Settlement("", act, self.choose.choice([0, SECOND]), ttl_ms=MINUTE)
        await self.store.messages.settle(queue, claim_id, wanted, retries=await retries_of(queue))

    async def some(self, queue: QueueRef) -> list[Message]:
        found = await self.store.all_messages(queue, details=True)
        assert not self.over.intersection(one.id for one in found), "one that is over came back"
        return [one for one in found if self.often(0.5)]

    async def delete(self) -> None:
        queue = self.queue()
        found = await self.some(queue)
        await self.store.messages.delete(queue, [one.id for one in found], claim_ids=None)

    async def acknowledge(self) -> None:
        """Delete by the claim, as v2 does."""
        if not self.claims:
            return
        queue, claim_id, ids = self.choose.choice(self.claims)
        chosen = [one for one in ids if self.often(0.7)]
        held = {one: self.leases[queue, one] for one in chosen if (queue, one) in self.leases}
        self.free(queue, chosen)
        if not await self.store.messages.delete(queue, chosen, claim_ids=[claim_id]):
            now = self.store.clock.now_ms()
            self.over.update(one for one, until in held.items() if until > now)

    async def edit(self) -> None:
        queue = self.queue()
        for one in (await self.some(queue))[:2]:
            edit = Edit(one.id, b'"edited"', HOUR, self.choose.choice([None, SECOND]))
            await self.store.messages.edit(queue, edit)

    async def import_some(self) -> None:
        """Messages of other stores, or such as this one gave away."""
        now, choose = self.store.clock.now_ms(), self.choose
        if self.gone and self.often(0.5):
            message = self.gone.pop()
            self.over.discard(message.id)
        else:
            own_id = new_message_id(self.store.clock.now_us())
            attempts = [Attempt(1, now, now, choose.choice(list(Ended)), 0, client_id="w")]
            message = Message(
                own_id, 0, b"1", HOUR, now - choose.choice([0, HOUR]), now + HOUR, now, None,
                choose.choice([0, 1]), "producer", choose.choice([None, now + SECOND]), None,
                None, choose.choice([0, 1]), None, choose.choice([[], attempts]),
            )  # fmt: skip
        self.imported += 1
        await self.store.messages.import_messages(
            self.queue(), [message], source="other", number=self.imported
        )

    async def give_away(self) -> None:
        """Let messages leave, as for another pool; some come back."""
        queue = self.queue()
        found = [one for one in await self.some(queue) if one.claim_id is None][:2]
        ids = [one.id for one in found]
        if not await self.store.messages.delete(queue, ids, claim_ids=[]):
            statement = "SELECT id FROM entry"  # one that was moved meanwhile is still here
            rows = await self.store.db.look(lambda db: db.execute(statement).fetchall())
            self.gone += [one for one in found if (bytes.fromhex(one.id),) not in rows]

    async def move(self) -> None:
        queue, target = self.choose.sample(QUEUES, 2)
        wanted = Move(target, HOUR, self.choose.choice([0, SECOND]), reset=self.often(0.5))
        found = await self.some(queue)
        await self.store.messages.move(queue, [one.id for one in found], wanted)

    async def purge(self) -> None:
        await self.store.messages.purge(self.queue())

    async def create(self) -> None:
        await self.store.management.create_queue(self.queue(), METADATA, max_queues=9)
        filtered = {"_filter": "a = 'b'", "_default_message_ttl": 60}
        await self.store.management.create_queue(FILTERED, filtered, max_queues=9)

    async def change(self) -> None:
        record = await self.store.management.get_queue(self.queue())
        if record is not None:
            metadata = {**METADATA, "_done_retention": self.choose.choice([0, 1, 60])}
            changed = replace(record, metadata=metadata, exposing=self.often(0.3))
            await self.store.management.update_queue(changed)
            await self.store.messages.release_delayed(record.queue, 9)

    async def drop(self) -> None:
        queue = self.queue()
        record = await self.store.management.get_queue(queue)
        if record is not None:
            await self.store.management.delete_queue(queue, version=record.version)
        if self.often(0.8):
            await self.store.messages.purge(queue, forget=True)

    async def sweep(self) -> None:
        self.store.clock.advance(self.choose.choice([0, SECOND, 5 * SECOND, MINUTE, 5 * HOUR]))
        await self.store.messages.sweep(1_000, retries_of)
        await self.store.management.sweep_records(1_000)

    async def records(self) -> None:
        name, ttl = f"n{self.choose.randrange(3)}", self.choose.choice([None, SECOND])
        if self.often(0.5):
            await self.store.management.put_record(
                "kind", "p", name, b"1", expected=None, ttl_ms=ttl
            )
        else:
            await self.store.management.delete_record("kind", "p", name)

    async def run(self) -> None:
        """Do several things at once; some who ask go away before the answer."""
        works: list[Callable[[], Awaitable[None]]] = [
            *[self.post] * 4, *[self.claim] * 4, *[self.settle] * 3, self.end_claim,
            *[self.acknowledge] * 2, self.delete, self.edit, self.import_some, self.give_away,
            self.move, self.purge, self.create, self.change, self.drop, *[self.sweep] * 2,
            self.records,
        ]  # fmt: skip
        chosen = self.choose.choices(works, k=self.choose.randint(1, 7))

        async def one(work: Callable[[], Awaitable[None]]) -> None:
            for _ in range(self.choose.choice([0, 0, 5, 50])):  # some join a later batch
                await asyncio.sleep(0)
            with suppress(ZaqarLiteError, TimeoutError):
                async with asyncio.timeout(0.01 if self.often(0.05) else None):
                    await work()

        await asyncio.gather(*map(one, chosen))

    # -- restarts and failures --

    async def restart(self) -> None:
        """Let another server open the store, after another program wrote there, or not."""
        store = self.store
        if self.often(0.3):  # killed: nothing is written at the end
            await store.db.engine.close()
            store._make()
            await store.messages.open()
        elif self.often(0.4):
            await store.put(await self.foreign())
        else:
            await store.restart()

    async def foreign(self) -> Mapping[bytes, bytes]:
        """Messages in the metadata log, and pages that have all of a queue, as others write."""
        store, choose = self.store, self.choose
        puts: dict[bytes, bytes] = {}
        first, now = store.next_id + 5_000, store.clock.now_ms()
        for number in range(first, first + choose.choice([1, 40])):
            own = [("a", "b")] if self.often(0.3) else []
            if self.often(0.8):
                own.append(("queue", keys.queue_id(self.queue()).decode()))
            visible = now + choose.choice([0, 0, SECOND])
            entry = records.Metadata(number, now, now, visible, choose.choice([0, 60]), own)
            body = records.encode_payload(choose.choice([b"1", b"no json"]))
            puts[keys.message_key(RecordType.PAYLOAD, number)] = body
            puts[store.log_key(number)] = encode_metadata(entry)
        return puts

    async def merge_pages(self) -> None:
        """Let each list of a queue be one record, as earlier versions and others have it."""
        for kind in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
            pages: dict[bytes, dict[bytes, bytes]] = {}
            found = await self.store.records(kind)
            for key, value in found.items():
                pages.setdefault(keys.read_queue_key(key).queue, {})[key] = value
            puts = {
                keys.queue_key(kind, queue): merged_pages(kind, values)
                for queue, values in pages.items()
            }
            if puts:
                await self.store.put(puts, *(found.keys() - puts.keys()))

    async def fail(self) -> None:
        """Let a batch fail: before or after it is stored, or where it is encoded."""
        store, choose = self.store, self.choose
        engine, is_stored, left = store.db.engine, self.often(0.5), choose.randint(1, 40)
        write, put = engine._write, recorder.Encoding.put
        later = store.clock.now_ms() + 24 * HOUR  # when no message waits any more
        before = snapshot(store.db.connection, later)
        error = choose.choice([OSError("planted"), slatedb.InternalError("planted")])

        async def fail(puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
            if is_stored:
                await write(puts, deletes)
            raise error

        def fail_to_encode(self: recorder.Encoding, key: bytes, value: bytes) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise RuntimeError("planted")
            put(self, key, value)

        if self.often(0.4):
            with patch.object(recorder.Encoding, "put", fail_to_encode):
                await self.run()
        else:
            with patch.object(engine, "_write", fail):
                await self.run()
                with suppress(Unavailable):
                    await store.post("last")
            await self.wait()
            assert is_stored or snapshot(store.db.connection, later) == before
        await self.wait()

    async def wait(self) -> None:
        """Wait until the store is open again."""
        while True:
            with suppress(Unavailable):
                await self.store.messages.ping()
                return
            await asyncio.sleep(0.05)


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
                await chaos.choose.choice([chaos.restart, chaos.merge_pages, chaos.fail])()
                await check_database(store.db)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_record_that_says_something_else_is_refused_by_name_or_worked_with(
    seed: int, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    async with store:
        chaos = Chaos(store, choose)
        for _ in range(6):
            await chaos.run()
        engine = store.db.engine
        key, value = choose.choice([row async for rows in engine.scan(b"") for row in rows])
        at, cut = choose.randrange(len(value) or 1), choose.randrange(2, len(key) + 1)
        changes = (
            {key: value[:at] + bytes([choose.randrange(256)]) + value[at + 1 :]},
            {key: value[:at]},
            {key: value + b"more"},
            {key[:cut] + choose.randbytes(3): value},
        )
        await engine.commit(Batch(choose.choice(changes), ()))
        try:
            await store.restart()
        except ConfigurationError as exc:
            assert "can't be read" in str(exc) or "its format is" in str(exc)  # noqa: PT017
            return
        for queue in QUEUES:
            with suppress(Unavailable):  # where it says that all messages are elsewhere
                await store.post("new", to=queue)
                await store.claim(50, queue=queue, retries=await retries_of(queue))
                store.clock.advance(HOUR)
                await store.messages.sweep(1_000, retries_of)
                await store.messages.purge(queue, forget=True)
