"""Operations at random on a store that keeps tables, and what must hold of all their answers.

Nobody is handed what another holds, and what was acknowledged never comes back.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tests.drivers.store import HOUR, MINUTE, SECOND, BothStores
from zaqar_lite.domain.attempts import Attempt, Backoff, Ended
from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.domain.groups import GROUP_HEADER
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.metadata import DONE_RETENTION, FAILED_RETENTION
from zaqar_lite.domain.models import (
    NO_RETRIES,
    DeadLetter,
    DelayMode,
    Edit,
    ListQuery,
    Message,
    Move,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage, OutboxEntry
from zaqar_lite.domain.settlements import Act, Outcome, Settlement

OPERATIONS = {"post": 8, "claim": 8, "settle": 6, "acknowledge": 4, "sweep": 4} | dict.fromkeys(
    (
        *("end_claim", "delete", "edit", "import_some", "give_away", "move", "create", "change"),
        *("release_delayed", "records", "look"),
    ),
    2,
)
"""What is done, and how often beside the others."""


class Chaos:
    """Operations on a store, chosen at random.

    `large` is the longest post, and `large_share` how often there is one; `emptied` is how often
    a queue is purged or dropped; `lasts` are waits.

    `leases` are the messages that somebody holds for sure, and until when; `over` are those that
    were acknowledged, or deleted.
    """

    large, large_share, emptied = 700, 0.6, 1
    lasts: Sequence[int] = (0, SECOND, 15 * SECOND, 2 * MINUTE)

    def __init__(
        self, store: BothStores, queues: Sequence[QueueRef], choose: random.Random
    ) -> None:
        self.store = store
        self.queues = queues
        self.choose = choose
        self.claims: list[tuple[QueueRef, str, list[str]]] = []
        self.leases: dict[tuple[QueueRef, str], int] = {}
        self.over: set[str] = set()
        self.gone: list[Message] = []
        self.imported = 0

    async def step(self) -> str:
        """Do something; answer what, and why it was refused."""
        weights = OPERATIONS | {"purge": self.emptied, "drop": self.emptied}
        (what,) = self.choose.choices(list(weights), list(weights.values()))
        try:
            await getattr(self, what)()
        except ZaqarLiteError as exc:
            return f"{what}: {exc}"
        return what

    async def run(self) -> None:
        """Do several things at once; some who ask go away before the answer."""

        async def one() -> None:
            for _ in range(self.choose.choice([0, 0, 5, 50])):  # some join a later batch
                await asyncio.sleep(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01 if self.often(0.05) else None):
                    await self.step()

        await asyncio.gather(*(one() for _ in range(self.choose.randint(1, 7))))

    def queue(self) -> QueueRef:
        return self.choose.choice(self.queues)

    def beside(self, queue: QueueRef) -> list[QueueRef]:
        """The other queues of its project."""
        return [one for one in self.queues if one != queue and one.project == queue.project]

    def often(self, share: float) -> bool:
        return self.choose.random() < share

    def key(self) -> IdempotencyKey | None:
        text = str(self.choose.randrange(12))
        return IdempotencyKey(text, text.encode() * 16) if self.often(0.2) else None

    def retries(self, queue: QueueRef) -> RetryPolicy:
        target = self.choose.choice([None, *self.beside(queue)])
        ttl = self.choose.choice([None, HOUR])
        letter = DeadLetter(target, self.choose.choice([2, 3]), ttl_ms=ttl, max_failures=2)
        backoff = Backoff((5 * SECOND, MINUTE), 0.0)
        return RetryPolicy(letter, backoff) if self.often(0.8) else NO_RETRIES

    async def retries_of(self, queue: QueueRef) -> RetryPolicy:
        return self.retries(queue)

    def message(self, others: Sequence[QueueRef]) -> NewMessage:
        choose = self.choose
        headers = (
            {"a": "b"},
            {"sys.client": "x", "queue": "y"},
            {GROUP_HEADER: choose.choice("gh")},
        )
        copies = (
            Copy(one, HOUR, choose.choice([0, SECOND]), choose.randint(1, 200)) for one in others
        )
        notes = (OutboxEntry(one, b'"%s"' % (b"0" * 32), 1, HOUR) for one in others)
        return NewMessage(
            choose.choice([b'"%d"' % choose.randrange(9), b'"%s"' % (b"x" * 300)]),
            choose.choice([HOUR, MINUTE, SECOND]),
            choose.choice([0, 0, 0, 2 * SECOND, 5 * MINUTE]),
            self.key(),
            choose.choice([None, None, *headers]),
            choose.randint(1, 200),
            tuple(one for one in copies if self.often(0.2)),
            tuple(one for one in notes if self.often(0.1)),
        )

    async def post(self) -> None:
        queue = self.queue()
        others = self.beside(queue)
        count = self.choose.choice([1, 1, 3, 40, self.large if self.often(self.large_share) else 2])
        messages = [self.message(others) for _ in range(count)]
        await self.store.messages.post(
            queue, messages, client_id=self.choose.choice(["producer", ""]),
            batch_key=self.key(), version=None,
        )  # fmt: skip

    async def claim(self) -> None:
        queue, limit = self.queue(), self.choose.choice([1, 5, 40])
        ttl, removes = self.choose.choice([MINUTE, 2 * SECOND]), self.often(0.2)
        began = self.store.clock.now_ms()
        claimed = await self.store.claim(
            limit, queue=queue, ttl=ttl, retries=self.retries(queue), removes=removes,
            client=self.choose.choice(["worker", "another"]),
            mode=self.choose.choice(list(DelayMode)),
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
                failed=self.often(0.5), reason="why", ttl_ms=self.choose.choice([SECOND, MINUTE]),
            )
            for one in ids
            if self.often(0.6)
        ]  # fmt: skip
        self.free(queue, [one.message_id for one in wanted])
        policy = self.retries(queue)
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
        delay, ttl = self.choose.choice([0, SECOND]), self.choose.choice([SECOND, MINUTE])
        wanted = Settlement("", act, delay, ttl_ms=ttl)
        await self.store.messages.settle(queue, claim_id, wanted, retries=self.retries(queue))

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
            body = self.choose.choice([None, b'"edited"'])
            edit = Edit(one.id, body, HOUR, self.choose.choice([None, 0, SECOND]))
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
        queue, target = self.choose.sample(self.queues, 2)
        wanted = Move(target, HOUR, self.choose.choice([0, SECOND]), reset=self.often(0.5))
        ids = [one.id for one in await self.some(queue)]
        ids += [one for _, _, held in self.claims[-2:] for one in held]  # wherever they are now
        await self.store.messages.move(queue, list(dict.fromkeys(ids)), wanted)

    async def purge(self) -> None:
        await self.store.messages.purge(self.queue())

    async def create(self) -> None:
        queue = self.queue()
        kept = {DONE_RETENTION: 60, FAILED_RETENTION: self.choose.choice([0, 60])}
        await self.store.management.create_queue(queue, kept, max_queues=100)
        filtered = {"_filter": "a = 'b'", "_default_message_ttl": 60}
        named = queue._replace(name="filtered")
        await self.store.management.create_queue(named, filtered, max_queues=100)

    async def change(self) -> None:
        record = await self.store.management.get_queue(self.queue())
        if record is not None:
            metadata = {**record.metadata, DONE_RETENTION: self.choose.choice([0, 1, 60])}
            changed = replace(record, metadata=metadata, exposing=self.often(0.3))
            await self.store.management.update_queue(changed)

    async def release_delayed(self) -> None:
        await self.store.messages.release_delayed(self.queue(), 20)

    async def drop(self) -> None:
        queue = self.queue()
        record = await self.store.management.get_queue(queue)
        if record is not None:
            await self.store.management.delete_queue(queue, version=record.version)
        if self.often(0.8):
            await self.store.messages.purge(queue, forget=True)

    async def sweep(self) -> None:
        self.store.clock.advance(self.choose.choice(self.lasts))
        await self.store.messages.sweep(self.choose.choice([10, 1_000]), self.retries_of)
        await self.store.management.sweep_records(1_000)

    async def records(self) -> None:
        name, ttl = f"n{self.choose.randrange(3)}", self.choose.choice([None, SECOND])
        if self.often(0.5):
            await self.store.management.put_record(
                "kind", "p", name, b"1", expected=None, ttl_ms=ttl
            )
        else:
            await self.store.management.delete_record("kind", "p", name)

    async def look(self) -> None:
        queue = self.queue()
        await self.store.messages.stats(queue)
        await self.store.messages.list_messages(queue, ListQuery(10, include_claimed=True))
