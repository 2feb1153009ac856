"""A queue as the tests speak of it: texts for bodies, and defaults for what does not matter."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.contract.stores import Stores
from zaqar_lite.domain.attempts import Attempt, Backoff
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    NO_LIMIT,
    NO_RETRIES,
    Claim,
    Claimed,
    ClaimRequest,
    DeadLetter,
    DelayMode,
    Edit,
    ListQuery,
    Message,
    Move,
    Page,
    QueueRef,
    Refusal,
    RetryPolicy,
    Stats,
    SweepResult,
)
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage, Posted, identify
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement

T = TypeVar("T")
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def some(value: T | None) -> T:
    """What must be there."""
    assert value is not None
    return value


def encode(text: str) -> bytes:
    """The body that stands for a text."""
    return json.dumps(text).encode()


def texts(messages: Iterable[Message]) -> list[str]:
    """The texts of messages, in their order."""
    return [json.loads(message.body) for message in messages]


def ids(messages: Iterable[Message]) -> list[str]:
    """The ids of messages, in their order."""
    return [message.id for message in messages]


def identify_body(key: str, *bodies: bytes) -> IdempotencyKey:
    """A key that stands for these bodies, in whatever queue."""
    return identify(QueueRef("any", "any"), key, bodies)


def new(
    text: str,
    *,
    ttl: int = HOUR,
    delay: int = 0,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    priority: int = DEFAULT_PRIORITY,
    copies: tuple[Copy, ...] = (),
) -> NewMessage:
    """A message to post; durations in milliseconds."""
    body = encode(text)
    return NewMessage(
        body,
        ttl,
        delay,
        None if key is None else identify_body(key, body),
        headers,
        priority,
        copies,
    )


def ack(message_id: str) -> Settlement:
    """Delete a message."""
    return Settlement(message_id, Act.ACK)


def give_back(message_id: str, delay: int | None = None) -> Settlement:
    """Release a message that has not failed."""
    return Settlement(message_id, Act.RELEASE, delay_ms=delay)


def fail(
    message_id: str,
    delay: int | None = None,
    *,
    reason: str | None = None,
    detail: str | None = None,
) -> Settlement:
    """Release a message that has failed."""
    return Settlement(
        message_id, Act.RELEASE, delay_ms=delay, failed=True, reason=reason, detail=detail
    )


def extend(message_id: str, ttl: int, grace: int = MINUTE) -> Settlement:
    """Hold a message from now for `ttl`."""
    return Settlement(message_id, Act.EXTEND, ttl_ms=ttl, grace_ms=grace)


def bury(message_id: str, *, reason: str | None = None, detail: str | None = None) -> Settlement:
    """Send a message to the dead letters."""
    return Settlement(message_id, Act.DEAD, reason=reason, detail=detail)


def backoff(*delays: int, jitter: float = 0.0) -> Backoff:
    """A back-off with these delays."""
    return Backoff(delays, jitter)


@dataclass(frozen=True)
class QueueUnderTest:
    """One queue of one pair of stores; durations in milliseconds."""

    stores: Stores
    ref: QueueRef

    def at(self, stores: Stores) -> "QueueUnderTest":
        """The same queue, through another pair of stores."""
        return QueueUnderTest(stores, self.ref)

    def named(self, name: str) -> "QueueUnderTest":
        """Another queue of the project."""
        return QueueUnderTest(self.stores, QueueRef(self.ref.project, name))

    def as_dead_letter_queue(
        self, max_claims: int = NO_LIMIT, ttl: int | None = None, *, max_failures: int = NO_LIMIT
    ) -> DeadLetter:
        """The policy of a queue whose dead letters go here."""
        return DeadLetter(self.ref, max_claims, ttl, max_failures)

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.stores.clock.advance(milliseconds)

    async def post(
        self,
        *what: str | NewMessage,
        ttl: int = HOUR,
        delay: int = 0,
        client: str = "producer",
        batch_key: str | None = None,
        version: int | None = None,
    ) -> list[str]:
        """Post texts or messages; answer the ids."""
        posted = await self.post_all(
            [new(item, ttl=ttl, delay=delay) if isinstance(item, str) else item for item in what],
            client=client,
            batch_key=batch_key,
            version=version,
        )
        return [answer.id for answer in posted]

    async def post_all(
        self,
        messages: Sequence[NewMessage],
        *,
        client: str = "producer",
        batch_key: str | None = None,
        version: int | None = None,
    ) -> Sequence[Posted]:
        """Post messages; answer what became of each."""
        bodies = [message.body for message in messages]
        key = None if batch_key is None else identify_body(batch_key, *bodies)
        return await self.stores.messages.post(
            self.ref, messages, client_id=client, batch_key=key, version=version
        )

    async def page(
        self,
        *,
        after: Marker | int | None = None,
        until: Marker | int | None = None,
        limit: int = 100,
        exclude: str | None = None,
        claimed: bool = True,
        delayed: bool = True,
        version: int | None = None,
        details: bool = False,
        group: str | None = None,
    ) -> Page:
        """One page of the listing."""
        return await self.stores.messages.list_messages(
            self.ref,
            ListQuery(
                limit,
                Marker(after) if isinstance(after, int) else after,
                Marker(until) if isinstance(until, int) else until,
                exclude_client_id=exclude,
                include_claimed=claimed,
                include_delayed=delayed,
                version=version,
                details=details,
                group=group,
            ),
        )

    async def listed(
        self, *, after: Marker | int | None = None, limit: int = 100, **options: Any
    ) -> list[Message]:
        """All messages of the listing, page by page; `options` are those of `page`."""
        found: list[Message] = []
        while (page := await self.page(after=after, limit=limit, **options)).messages:
            found += page.messages
            after = page.marker
        return found

    async def followed(self, is_over: Callable[[], bool], *, limit: int = 4) -> list[Message]:
        """All that a reader finds behind its marker, until it is over and no more comes."""
        found: list[Message] = []
        marker: int | None = None
        while True:
            last_round = is_over()
            page = await self.page(after=marker, limit=limit)
            found += page.messages
            marker = marker if page.marker is None else page.marker
            if last_round and not page.messages:
                return found
            await asyncio.sleep(0.001)  # others need the processor too

    async def bodies(self) -> list[str]:
        """The texts of all live messages, in order."""
        return texts(await self.listed())

    async def get(self, *message_ids: str, details: bool = False) -> Sequence[Message]:
        """Fetch messages by id."""
        given = {"details": True} if details else {}
        return await self.stores.messages.get_messages(self.ref, message_ids, **given)

    async def get_one(self, message_id: str, *, details: bool = False) -> Message:
        """Fetch a message that is there."""
        (message,) = await self.get(message_id, details=details)
        return message

    async def attempts(self, message_id: str) -> Sequence[Attempt]:
        """The history of a message that is there."""
        return (await self.get_one(message_id, details=True)).attempts

    async def claim(
        self,
        limit: int = 10,
        *,
        ttl: int = 10 * MINUTE,
        grace: int = MINUTE,
        client: str = "consumer",
        mode: DelayMode = DelayMode.IGNORE,
        exposing: bool = False,
        dead_letter: DeadLetter | None = None,
        version: int | None = None,
        backoff: Backoff | None = None,
        details: bool = False,
        removes: bool = False,
    ) -> Claimed:
        """Claim messages, of an exposing queue also what is delayed."""
        if exposing:
            mode = DelayMode.HONOUR
            await self.release_delayed(limit, version=version)
        return await self.stores.messages.claim(
            self.ref,
            ClaimRequest(
                limit,
                version,
                mode,
                ttl_ms=ttl,
                grace_ms=grace,
                client_id=client,
                retries=RetryPolicy(dead_letter, backoff),
                details=details,
                removes=removes,
            ),
        )

    async def claim_id(
        self,
        limit: int = 10,
        *,
        ttl: int = 10 * MINUTE,
        grace: int = MINUTE,
        client: str = "consumer",
    ) -> str:
        """Claim messages that must be there; answer the claim's id."""
        claimed = await self.claim(limit, ttl=ttl, grace=grace, client=client)
        return some(claimed.claim_id)

    async def pop(self, limit: int = 10, **options: Any) -> Claimed:
        """Pop messages; `options` are those of `claim`, but for its lease."""
        return await self.claim(limit, removes=True, **options)

    async def get_claim(self, claim_id: str, *, details: bool = False) -> Claim:
        """Read a claim."""
        given = {"details": True} if details else {}
        return await self.stores.messages.get_claim(self.ref, claim_id, **given)

    async def is_over(self, claim_id: str) -> bool:
        """Whether there is no such claim (any more)."""
        try:
            await self.get_claim(claim_id)
        except NotFound:
            return True
        return False

    async def held(self, claim_id: str) -> list[str]:
        """The texts of what a live claim holds."""
        return texts((await self.get_claim(claim_id)).messages)

    async def renew(self, claim_id: str, *, ttl: int = 10 * MINUTE, grace: int = MINUTE) -> None:
        """Renew a claim."""
        renewal = Settlement("", Act.EXTEND, ttl_ms=ttl, grace_ms=grace)
        settled = await self.stores.messages.settle(self.ref, claim_id, renewal)
        if settled.outcomes != [Outcome.DONE]:
            raise NotFound(claim_id)

    async def release(self, claim_id: str, *, delay: int = 0) -> None:
        """Release a claim."""
        given_back = Settlement("", Act.RELEASE, delay_ms=delay)
        await self.stores.messages.settle(self.ref, claim_id, given_back)

    async def settle(
        self,
        claim_id: str,
        *settlements: Settlement,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim, and wait for the dead letters to arrive."""
        settled = await self.stores.messages.settle(
            self.ref, claim_id, settlements, retries=retries, version=version
        )
        letter = retries.dead_letter
        if settled.moved and letter is not None and letter.target is not None:
            target = QueueUnderTest(self.stores, letter.target)
            left = [one.message_id for one in settlements if one.act is not Act.ACK]
            await target.arrived(left, settled.moved)
        return settled

    async def arrived(self, message_ids: Collection[str], count: int) -> None:
        """Wait until so many of these messages are here.

        What follows an answer at once takes a moment; another may have taken them by then.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while len(await self.get(*message_ids)) < count:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.005)

    async def outcomes(
        self, claim_id: str, *settlements: Settlement, retries: RetryPolicy = NO_RETRIES
    ) -> list[Outcome]:
        """Settle messages of a claim, in one call unless one is named twice; answer outcomes."""
        calls: list[Sequence[Settlement]] = [settlements]
        if len({one.message_id for one in settlements}) < len(settlements):
            calls = [[one] for one in settlements]
        done = [await self.settle(claim_id, *call, retries=retries) for call in calls]
        return [outcome for settled in done for outcome in settled.outcomes]

    async def move(
        self,
        target: "QueueUnderTest",
        *message_ids: str,
        ttl: int = HOUR,
        delay: int = 0,
        reset: bool = True,
    ) -> list[Outcome]:
        """Move messages to another queue; answer what became of each."""
        how = Move(target.ref, ttl, delay, reset)
        return list(await self.stores.messages.move(self.ref, message_ids, how))

    async def next_due(self) -> int | None:
        """When a message next becomes ready by time."""
        watch = await self.stores.messages.watch(self.ref, lambda _: None)
        try:
            return await watch.next_due()
        finally:
            watch.end()

    async def delete(
        self, *message_ids: str, claims: Collection[str] | None = None
    ) -> Sequence[Refusal]:
        """Delete messages."""
        return await self.stores.messages.delete(self.ref, message_ids, claim_ids=claims)

    async def edit(
        self,
        message_id: str,
        text: str | None = None,
        *,
        ttl: int | None = None,
        delay: int | None = None,
        version: int | None = None,
        if_due: int | None = None,
    ) -> Message:
        """Edit a message."""
        return await self.stores.messages.edit(
            self.ref,
            Edit(
                message_id,
                body=None if text is None else encode(text),
                ttl_ms=ttl,
                delay_ms=delay,
                version=version,
                if_due=if_due,
            ),
        )

    async def stats(self) -> Stats:
        """Count the messages."""
        return await self.stores.messages.stats(self.ref)

    async def cuts(self, ranges: int) -> list[int]:
        """Where to cut the messages into ranges."""
        return list((await self.stores.messages.stats(self.ref, ranges=ranges)).cuts)

    async def counts(self) -> tuple[int, int, int]:
        """Count the ready, delayed and claimed messages."""
        stats = await self.stats()
        return stats.ready, stats.delayed, stats.claimed

    async def release_delayed(self, limit: int = 100, *, version: int | None = None) -> int:
        """Make delayed messages ready."""
        return await self.stores.messages.release_delayed(self.ref, limit, version=version)

    async def purge(self) -> None:
        """Remove all messages."""
        await self.stores.messages.purge(self.ref)

    async def drop(self) -> None:
        """Remove the queue."""
        await self.stores.messages.purge(self.ref, forget=True)

    async def sweep(
        self, retries: Mapping[QueueRef, RetryPolicy] | None = None
    ) -> list[SweepResult]:
        """Sweep until nothing is left to do; answer what each step did."""

        async def retries_of(ref: QueueRef) -> RetryPolicy:
            return (retries or {}).get(ref, NO_RETRIES)

        done: list[SweepResult] = []
        idle = 0
        # A shared server still has what earlier tests left: more than 100,000 messages.
        for _ in range(1_000):
            swept = await self.stores.messages.sweep(1_000, retries_of)
            assert min(swept[:5]) >= 0
            if swept.total:
                done.append(swept)
                idle = 0
            elif idle == self.stores.case.idle_sweeps:
                return done
            else:
                idle += 1
        raise AssertionError("sweeping does not come to an end")
