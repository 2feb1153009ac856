"""Post any iterable: cut into batches by count and bytes, a bounded number of requests in flight.

`Posting` decides what is sent when; `post_all` does it with threads, `post_all_async` with tasks.
"""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

from zaqar_lite.client import arguments, serialization
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints import messages
from zaqar_lite.client.errors import BadRequest, KeyReused
from zaqar_lite.client.models import NewMessage
from zaqar_lite.client.steps import Steps

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected(Generic[T]):
    """A message that was not posted: its place in the iterable (from 0), and why."""

    index: int
    item: T
    reason: Exception


@dataclasses.dataclass(frozen=True, slots=True)
class Posted(Generic[T]):
    """Messages that are stored: the items and their ids, in order.

    `duplicates` are the ids that an earlier post with the same key had stored already.
    """

    items: Sequence[T]
    ids: Sequence[str]
    duplicates: Sequence[str] = ()


@dataclasses.dataclass(slots=True)
class PostSummary:
    """What became of an iterable: `duplicates` of the `messages` had been stored before.

    A request that was sent again because its answer was lost may find its own messages stored.
    """

    messages: int = 0
    duplicates: int = 0
    batches: int = 0
    bytes: int = 0
    rejected: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PostOptions(Generic[T]):
    """How to post many messages.

    Attributes:
        batch_size: messages per request, at most.
        batch_bytes: bytes per request, at most; the server's `max_messages_post_size` and the
            queue's `_max_messages_post_size` are the limit. A single larger message goes alone.
        in_flight: requests under way at a time. Order between requests is kept only with 1.
        rate: messages per second, at most; None for as fast as the server takes them.
        key: makes a message's idempotency key from the item, so that posting the same items again
            later, in any order, stores nothing twice. Where messages have no key, their request
            has one of its own, which covers its retries.
        run: a name for this posting, instead of `key`: posting the same items again in the same
            order, in batches of the same size, under the same name stores nothing twice. The
            server remembers one key a request instead of one a message. Other items under the
            name are refused with KeyReused. It excludes `on_rejected`: what is stored without
            the refused messages is not the batch that the key stands for.
        on_posted: is called with what was stored, in order.
        on_rejected: is called for each message that cannot be encoded or that the server refuses
            (400, or 409 for a key that stands for another message), and the others are posted;
            without it the first one raises.
    """

    batch_size: int = 100
    batch_bytes: int = 262_144
    in_flight: int = 8
    rate: float | None = None
    key: Callable[[T], str] | None = None
    run: str | None = None
    on_posted: Callable[[Posted[T]], None] | None = None
    on_rejected: Callable[[Rejected[T]], None] | None = None

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing could be sent, and options that exclude each other.

        Raises:
            TypeError, ValueError: the text names them.
        """
        arguments.check_fields(self)
        for name in ("batch_size", "batch_bytes", "in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.rate is not None and self.rate <= 0:
            raise ValueError("rate must be above 0")
        if self.key is not None and self.run is not None:
            raise ValueError("give key (one a message) or run (one a request), not both")
        if self.on_rejected is not None and self.run is not None:
            raise ValueError(
                "run (one key a request) stores whole batches: with on_rejected give key"
            )


class Entry(NamedTuple, Generic[T]):
    """One message on its way; a tuple, which is made in half the time of a frozen class."""

    number: int
    item: T
    encoded: bytes
    keyed: bool


@dataclasses.dataclass(slots=True)
class Outcome(Generic[T]):
    """What became of one batch."""

    posted: list[Posted[T]] = dataclasses.field(default_factory=list)
    rejected: list[Rejected[T]] = dataclasses.field(default_factory=list)
    requests: int = 0
    bytes: int = 0


class Posting(Generic[T]):
    """Post one iterable: cut it, send its batches, and add up what became of them."""

    def __init__(self, client: BaseClient, queue: str, options: PostOptions[T]) -> None:
        self._client = client
        self._queue = queue
        self._options = options
        self._entries: list[Entry[T]] = []
        self._bytes = serialization.ENVELOPE_BYTES
        self._index = 0
        self._next = 0.0  # when the next message may go, where there is a rate
        self.summary = PostSummary()

    def take(self, item: T) -> list[Entry[T]] | None:
        """Take an item; return the batch that it completes or does not fit into any more."""
        index, self._index = self._index, self._index + 1
        try:
            message = self._keyed(item)
            encoded = self._client.encode(self._queue, message)
        except (TypeError, ValueError, RecursionError) as error:
            if self._options.on_rejected is None:
                raise
            self._reject(Rejected(index, item, error))
            return None
        size = len(encoded) + 1  # the comma
        full = self.flush() if self._bytes + size > self._options.batch_bytes else None
        keyed = isinstance(message, NewMessage) and message.idempotency_key is not None
        self._entries.append(Entry(index, item, encoded, keyed))
        self._bytes += size
        if len(self._entries) >= self._options.batch_size and full is None:
            full = self.flush()
        return full

    def flush(self) -> list[Entry[T]] | None:
        """Return what is left, if anything is."""
        entries, self._entries, self._bytes = self._entries, [], serialization.ENVELOPE_BYTES
        return entries or None

    def _keyed(self, item: T) -> object:
        if self._options.key is None:
            return item
        new = item if isinstance(item, NewMessage) else NewMessage(body=item)
        return dataclasses.replace(new, idempotency_key=self._options.key(item))

    def wait(self, count: int) -> float:
        """Return the seconds until so many messages may go: the rate holds over any long while."""
        if self._options.rate is None:
            return 0.0
        now = time.monotonic()
        begin = max(now, self._next)
        self._next = begin + count / self._options.rate
        return begin - now

    def most_under_way(self, most: int) -> int:
        """Return how many requests may be under way: of a run, the first one goes alone.

        Where it is refused, because the run was another, nothing else of it has been stored.
        """
        return 1 if self._options.run is not None and not self.summary.batches else most

    def send(self, entries: Sequence[Entry[T]]) -> Steps[Outcome[T]]:
        """Post a batch; one bad message fails it whole, so it is halved until that stands alone."""
        outcome = Outcome[T]()
        yield from self._send(entries, outcome)
        return outcome

    def _send(self, entries: Sequence[Entry[T]], outcome: Outcome[T]) -> Steps[None]:
        encoded = [entry.encoded for entry in entries]
        run = self._options.run
        call = messages.post(
            self._queue,
            encoded,
            keyed=all(entry.keyed for entry in entries),
            idempotency_key=None if run is None else f"{run}-{entries[0].number}",
        )
        try:
            ids = yield from self._client._exchange(call)
        except (BadRequest, KeyReused) as error:
            if run is not None and isinstance(error, KeyReused):
                raise _other_run(entries[0].number, error, run) from error
            if self._options.on_rejected is None:
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                yield from self._send(entries[:middle], outcome)
                yield from self._send(entries[middle:], outcome)
                return
            outcome.rejected.append(Rejected(entries[0].number, entries[0].item, error))
        else:
            items = [entry.item for entry in entries]
            outcome.posted.append(Posted(items, ids, ids.duplicates))
            outcome.bytes += sum(len(one) + 1 for one in encoded) + serialization.ENVELOPE_BYTES
        outcome.requests += 1

    def count(self, outcome: Outcome[T]) -> None:
        """Count one batch's outcome, and tell the callbacks."""
        self.summary.batches += outcome.requests
        self.summary.bytes += outcome.bytes
        for posted in outcome.posted:
            self.summary.messages += len(posted.ids)
            self.summary.duplicates += len(posted.duplicates)
            if self._options.on_posted is not None:
                self._options.on_posted(posted)
        for rejected in outcome.rejected:
            self._reject(rejected)

    def _reject(self, rejected: Rejected[T]) -> None:
        """Count a message that was not posted."""
        self.summary.rejected += 1
        if self._options.on_rejected is not None:
            self._options.on_rejected(rejected)


def _other_run(number: int, error: KeyReused, run: str) -> KeyReused:
    return KeyReused(
        error.title,
        f"item {number} was posted under the run {run!r} before, but in another batch or with "
        "another body: repeat the run as it was (items, order, batch size), or name it anew",
        status=error.status,
        request_id=error.request_id,
    )


def post_all(
    client: Any,  # noqa: ANN401 - a Client
    queue: str,
    items: Iterable[T],
    options: PostOptions[T],
) -> PostSummary:
    """Post every item in constant memory, with `in_flight` threads."""
    posting = Posting(client, queue, options)
    # A request that waits to be sent again holds up one thread, not those behind it: they go on
    # with batches that lie ready. With one in flight the next must not begin before it is stored.
    most = 1 if options.in_flight == 1 else 4 * options.in_flight
    under_way: deque[Future[Outcome[T]]] = deque()
    with ThreadPoolExecutor(options.in_flight, "zaqar-post") as threads:

        def send(entries: list[Entry[T]]) -> None:
            time.sleep(posting.wait(len(entries)))
            while under_way and (
                under_way[0].done() or len(under_way) >= posting.most_under_way(most)
            ):
                posting.count(under_way.popleft().result())
            under_way.append(threads.submit(client._run, posting.send(entries)))

        try:
            for item in items:
                if batch := posting.take(item):
                    send(batch)
            if batch := posting.flush():
                send(batch)
            while under_way:
                posting.count(under_way.popleft().result())
        finally:
            for future in under_way:
                future.cancel()
    return posting.summary


async def post_all_async(
    client: Any,  # noqa: ANN401 - an AsyncClient
    queue: str,
    items: Iterable[T] | AsyncIterable[T],
    options: PostOptions[T],
) -> PostSummary:
    """Post every item in constant memory, with `in_flight` tasks."""
    posting = Posting(client, queue, options)
    under_way: deque[asyncio.Task[Outcome[T]]] = deque()

    async def send(entries: list[Entry[T]]) -> None:
        # Also without a rate: the tasks must run between two batches of a busy iterable.
        await asyncio.sleep(posting.wait(len(entries)))
        if len(under_way) >= posting.most_under_way(options.in_flight):
            posting.count(await under_way.popleft())
        under_way.append(asyncio.create_task(client._run(posting.send(entries))))

    try:
        async for item in items if isinstance(items, AsyncIterable) else _each(items):
            if batch := posting.take(item):
                await send(batch)
        if batch := posting.flush():
            await send(batch)
        while under_way:
            posting.count(await under_way.popleft())
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    return posting.summary


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
