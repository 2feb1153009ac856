"""Post any iterable: cut into batches by count and bytes, a bounded number of requests in flight.

`Batcher`, `Batch` and `Pace` know no socket and no clock; `post_all` and `post_all_async` drive
them with threads and with tasks.
"""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from zaqar_lite.client import arguments, serialization
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call, Steps
from zaqar_lite.client.endpoints import messages
from zaqar_lite.client.errors import BadRequest, KeyReused
from zaqar_lite.client.models import Ids, NewMessage

if TYPE_CHECKING:
    from zaqar_lite.client.asynchronous.calls import AsyncCalls
    from zaqar_lite.client.sync.calls import SyncCalls

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
                message = f"{name} must be at least 1"
                raise ValueError(message)
        if self.key is not None and self.run is not None:
            message = "give key (one a message) or run (one a request), not both"
            raise ValueError(message)
        if self.on_rejected is not None and self.run is not None:
            message = "run (one key a request) stores whole batches: with on_rejected give key"
            raise ValueError(message)


class Entry(NamedTuple, Generic[T]):
    """One message on its way; a tuple, which is made in half the time of a frozen class."""

    number: int
    item: T
    encoded: bytes
    keyed: bool


@dataclasses.dataclass(slots=True)
class Outcome(Generic[T]):
    """What became of one batch."""

    posted: list[Posted[T]]
    rejected: list[Rejected[T]]
    requests: int
    bytes: int


class Batcher(Generic[T]):
    """Cut items into batches within the limits of count and bytes, counted exactly."""

    def __init__(
        self,
        options: PostOptions[T],
        encode: Callable[[object], bytes] = serialization.encode_message,
    ) -> None:
        self._options = options
        self._encode = encode
        self._entries: list[Entry[T]] = []
        self._bytes = serialization.ENVELOPE_BYTES
        self._index = 0
        self.rejected: list[Rejected[T]] = []

    def add(self, item: T) -> list[Entry[T]] | None:
        """Take an item; return the batch that it completes or does not fit into any more."""
        index, self._index = self._index, self._index + 1
        try:
            message = self._keyed(item)
            encoded = self._encode(message)
        except (TypeError, ValueError) as error:
            if self._options.on_rejected is None:
                raise
            self.rejected.append(Rejected(index, item, error))
            return None
        full: list[Entry[T]] | None = None
        size = len(encoded) + 1  # the comma
        if self._entries and self._bytes + size > self._options.batch_bytes:
            full = self.flush()
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
        key = self._options.key(item)
        if isinstance(item, NewMessage):
            return dataclasses.replace(item, idempotency_key=key)
        return NewMessage(body=item, idempotency_key=key)


class Pace:
    """Spread messages evenly over time: no more than `rate` per second over any longer while."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and rate <= 0:
            message = "rate must be above 0"
            raise ValueError(message)
        self._rate = rate
        self._next = 0.0

    def wait(self, now: float, count: int) -> float:
        """Return how many seconds to wait before `count` messages may go."""
        if self._rate is None:
            return 0.0
        begin = max(now, self._next)
        self._next = begin + count / self._rate
        return begin - now


class Tally(Generic[T]):
    """Add up outcomes and tell the callbacks."""

    def __init__(self, options: PostOptions[T]) -> None:
        self._options = options
        self.summary = PostSummary()

    def add(self, outcome: Outcome[T]) -> None:
        """Count one batch's outcome."""
        self.summary.batches += outcome.requests
        self.summary.bytes += outcome.bytes
        for posted in outcome.posted:
            self.summary.messages += len(posted.ids)
            self.summary.duplicates += len(posted.duplicates)
            if self._options.on_posted is not None:
                self._options.on_posted(posted)
        self.reject(outcome.rejected)

    def most_under_way(self, most: int) -> int:
        """Return how many requests may be under way: of a run, the first one goes alone.

        Where it is refused, because the run was another, nothing else of it has been stored.
        """
        return 1 if self._options.run is not None and not self.summary.batches else most

    def reject(self, rejected: list[Rejected[T]]) -> None:
        """Count messages that were not posted."""
        self.summary.rejected += len(rejected)
        for one in rejected:
            if self._options.on_rejected is not None:
                self._options.on_rejected(one)
        rejected.clear()


def _batches(
    client: "SyncCalls", items: Iterable[T], batcher: Batcher[T]
) -> Iterator[list[Entry[T]]]:
    for item in items:
        if serialization.has_instant(item):
            client._run(client._learn_delay(item))
        if full := batcher.add(item):
            yield full
    if rest := batcher.flush():
        yield rest


async def _batches_async(
    client: "AsyncCalls", items: Iterable[T] | AsyncIterable[T], batcher: Batcher[T]
) -> AsyncIterator[list[Entry[T]]]:
    async for item in items if isinstance(items, AsyncIterable) else _each(items):
        if serialization.has_instant(item):
            await client._run(client._learn_delay(item))
        if full := batcher.add(item):
            yield full
    if rest := batcher.flush():
        yield rest


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


def _stored(entries: Sequence[Entry[T]], ids: Ids) -> Outcome[T]:
    size = sum(len(entry.encoded) + 1 for entry in entries) + serialization.ENVELOPE_BYTES
    return Outcome([Posted([entry.item for entry in entries], ids, ids.duplicates)], [], 1, size)


def _refused(
    entries: Sequence[Entry[T]], error: BadRequest | KeyReused, options: PostOptions[T]
) -> Outcome[T] | None:
    """Return the outcome of a single refused message, None if the batch must be cut in two.

    Raises:
        BadRequest, KeyReused: there is no `on_rejected` to call for single messages.
    """
    if options.run is not None and isinstance(error, KeyReused):
        raise _other_run(entries[0].number, error, options) from error
    if options.on_rejected is None:
        raise error
    if len(entries) > 1:
        return None
    return Outcome([], [Rejected(entries[0].number, entries[0].item, error)], 1, 0)


def _other_run(number: int, error: KeyReused, options: PostOptions[T]) -> KeyReused:
    return KeyReused(
        error.title,
        f"item {number} was posted under the run {options.run!r} before, but in another batch or "
        "with another body: repeat the run as it was (items, order, batch size), or name it anew",
        status=error.status,
        request_id=error.request_id,
    )


def _joined(left: Outcome[T], right: Outcome[T]) -> Outcome[T]:
    return Outcome(
        left.posted + right.posted,
        left.rejected + right.rejected,
        left.requests + right.requests,
        left.bytes + right.bytes,
    )


def _call(queue: str, entries: Sequence[Entry[T]], options: PostOptions[T]) -> Call[Ids]:
    keyed = all(entry.keyed for entry in entries)
    key = None if options.run is None else f"{options.run}-{entries[0].number}"
    encoded = [entry.encoded for entry in entries]
    return messages.post(queue, encoded, keyed=keyed, idempotency_key=key)


def _send(
    client: BaseClient, queue: str, entries: Sequence[Entry[T]], options: PostOptions[T]
) -> Steps[Outcome[T]]:
    """Post a batch; one bad message fails it whole, so it is halved until that stands alone."""
    try:
        return _stored(entries, (yield from client._exchange(_call(queue, entries, options))))
    except (BadRequest, KeyReused) as error:
        outcome = _refused(entries, error, options)
    if outcome is not None:
        return outcome
    middle = len(entries) // 2
    left = yield from _send(client, queue, entries[:middle], options)
    right = yield from _send(client, queue, entries[middle:], options)
    return _joined(left, right)


def post_all(
    client: "SyncCalls", queue: str, items: Iterable[T], options: PostOptions[T]
) -> PostSummary:
    """Post every item in constant memory, with `in_flight` threads."""
    batcher = Batcher(options, partial(client.encode, queue))
    pace, tally = Pace(options.rate), Tally(options)
    # A request that waits to be sent again holds up one thread, not those behind it: they go on
    # with batches that lie ready. With one in flight the next must not begin before it is stored.
    most = 1 if options.in_flight == 1 else 4 * options.in_flight
    under_way: deque[Future[Outcome[T]]] = deque()
    with ThreadPoolExecutor(options.in_flight, "zaqar-post") as threads:
        try:
            for entries in _batches(client, items, batcher):
                tally.reject(batcher.rejected)
                time.sleep(pace.wait(time.monotonic(), len(entries)))
                if len(under_way) >= tally.most_under_way(most):
                    tally.add(under_way.popleft().result())
                under_way.append(
                    threads.submit(client._run, _send(client, queue, entries, options))
                )
            while under_way:
                tally.add(under_way.popleft().result())
        finally:
            for future in under_way:
                future.cancel()
    tally.reject(batcher.rejected)
    return tally.summary


async def post_all_async(
    client: "AsyncCalls",
    queue: str,
    items: Iterable[T] | AsyncIterable[T],
    options: PostOptions[T],
) -> PostSummary:
    """Post every item in constant memory, with `in_flight` tasks."""
    batcher = Batcher(options, partial(client.encode, queue))
    pace, tally = Pace(options.rate), Tally(options)
    under_way: deque[asyncio.Task[Outcome[T]]] = deque()
    try:
        async for entries in _batches_async(client, items, batcher):
            tally.reject(batcher.rejected)
            # Also without a rate: the tasks must run between two batches of a busy iterable.
            await asyncio.sleep(pace.wait(time.monotonic(), len(entries)))
            if len(under_way) >= tally.most_under_way(options.in_flight):
                tally.add(await under_way.popleft())
            sending = client._run(_send(client, queue, entries, options))
            under_way.append(asyncio.create_task(sending))
        while under_way:
            tally.add(await under_way.popleft())
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    tally.reject(batcher.rejected)
    return tally.summary
