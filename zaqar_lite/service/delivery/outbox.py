"""The outbox: what a post leaves for its subscribers, one durable message in an internal queue.

A `QueueWorker` claims from such a queue, acts on each message, and deletes it when that is done.

An outbox message is stored in the same step as its message. So a message that was acknowledged has
one, and a message that was refused has none. Two writes would not do. If the outbox message were
written second, that write could fail after the message is there. If it were written first, it would
need the message's id before the post; and one without a message could mean that the message was
never stored, or that it was deleted already. That of a delayed message waits until it is due.

The outbox of a store is spread over SHARDS queues by project, and so are deliveries that are tried
again. So a project with many slow receivers delays only the projects of its shard. The queues
of this module have names that no client can use (with `~`), no records, and no limit that stops a
post.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
from msgspec.structs import replace

from zaqar_lite.domain.errors import Invalid, TooMany
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import ClaimRequest, DelayMode, Message, QueueRef
from zaqar_lite.domain.posts import NewMessage, OutboxEntry
from zaqar_lite.domain.topics import name_of
from zaqar_lite.domain.yielding import in_steps
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors, cancelled
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.base import MessageStore

if TYPE_CHECKING:
    from zaqar_lite.service.policy import Policies, Policy

LEASE_MS = 60_000
"""How long a process has for a message of an internal queue."""
CLIENT_ID = "7a6171617200400080006c6974650000"
"""The Client-ID by which the server posts to, and claims from, the queues of this module."""
SHARDS = 4
OUTBOX_QUEUES = tuple(
    QueueRef(DELIVERIES_PROJECT, f"~new.{n}" if n else "~new") for n in range(SHARDS)
)
RETRY_QUEUES = tuple(
    QueueRef(DELIVERIES_PROJECT, f"~again.{n}" if n else "~again") for n in range(SHARDS)
)
MAX_ORDERED_DELIVERIES = 10_000
"""Outbox messages of ordered subscriptions that one post may write, all in the post's step."""
MAX_COPIED_BYTES = 33_554_432
"""Bytes of outbox messages that one post may write for its copies, in that step: 0.3 s on disk."""
LEAD_MS = 500
"""How long before it is due a delayed message is read again, because it may have been changed."""
BURIED_MS = 46_800_000
"""How long deliveries of expired messages are kept that are to be reported as failed.

In an ordered queue they wait behind one that is tried again; all wait while no server runs.
"""
LEAST_LIFE_MS = 1_000
"""A delivery whose message expires sooner is not tried any more."""
_LATER_BYTES = 1_048_576
_NO_ID = "0" * 32


class Forwarded(msgspec.Struct, omit_defaults=True):
    """A topic's message on its way to a queue, with what it was posted with; None for nothing.

    Times are seconds; the delay counts from `posted_at` (ms).
    """

    client_id: str = ""
    ttl: int | None = None
    delay: int | None = None
    headers: dict[str, str] | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    posted_at: int = 0

    def delay_left(self, now: int) -> int | None:
        """The seconds that the queue must delay it: what is left of its delay, rounded up."""
        if self.delay is None or not self.posted_at:
            return self.delay
        return max(self.delay - max(now - self.posted_at, 0) // 1000, 0)


class OutboxMessage(msgspec.Struct, omit_defaults=True):
    """A message to deliver: instants in milliseconds, `ttl` and `delay` in seconds.

    `version` is that of the queue's record at the post. `ordered` are the subscriptions that have a
    copy of the message in their own queues. `trace` is what `trace_of` found in the message's
    headers. `sent` is there for a topic's message, whose id is that of its outbox message.
    """

    id: str
    project: str
    queue: str
    posted_at: int
    until: int
    ttl: int
    body: msgspec.Raw
    delay: int | None = None
    due_at: int = 0
    version: int = 0
    ordered: tuple[str, ...] = ()
    trace: dict[str, str] = {}
    sent: Forwarded | None = None

    def to(self, subscription: str, payload: msgspec.Raw | None = None) -> "Delivery":
        """Make the first delivery to a subscription, by its id; None sends a usual notification."""
        sent = msgspec.Raw(payload_of(self)) if payload is None else payload
        return Delivery(
            self.project, self.queue, subscription, self.id, self.until, sent, trace=self.trace
        )


_TRACE_PARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE = re.compile("[\x20-\x7e]{1,512}")
_ID_AT = len('{"id":"')


class Delivery(msgspec.Struct, omit_defaults=True):
    """A message on its way to one subscription, for a later try; `payload` is what it is sent.

    `attempts` counts the tries so far. `kind` is Zaqar's `Message_Type`.
    """

    project: str
    queue: str
    subscription: str
    id: str
    until: int
    payload: msgspec.Raw
    attempts: int = 0
    kind: str = "Notification"
    reason: str = ""
    trace: dict[str, str] = {}


encode = msgspec.json.encode
decode_forwarded = msgspec.json.Decoder(Forwarded).decode
decode_outbox_message = msgspec.json.Decoder(OutboxMessage).decode
decode_delivery = msgspec.json.Decoder(Delivery).decode


def failed_queue(project: str, subscription_id: str) -> QueueRef:
    """The queue of what could not be delivered to a subscription."""
    return QueueRef(project, f"~failed.{subscription_id}")


def outbox_queue(project: str) -> QueueRef:
    """The queue of a project's outbox messages."""
    return OUTBOX_QUEUES[crc32(project.encode("utf-8", "surrogatepass")) % SHARDS]


def retry_queue(project: str) -> QueueRef:
    """The queue of a project's deliveries that are tried again."""
    return RETRY_QUEUES[crc32(project.encode("utf-8", "surrogatepass")) % SHARDS]


def ordered_queue(project: str, subscription_id: str) -> QueueRef:
    """The queue of what is to be delivered in strict order to a subscription."""
    return QueueRef(project, f"~ordered.{subscription_id}")


def is_internal(queue: QueueRef) -> bool:
    """Whether a queue is one of the server's own, of which no client knows."""
    return queue.name.startswith("~")


def is_pending(queue: QueueRef) -> bool:
    """Whether what lies in a queue of the server's own is still to be delivered."""
    return queue.name.startswith(("~new", "~again", "~ordered."))


async def with_outbox_messages(
    queue: QueueRef, new: Sequence[NewMessage], policies: "Policies", policy: "Policy", now: int
) -> Sequence[NewMessage]:
    """Add outbox messages to a post: for subscribers of the queue, and of queues that get copies.

    Raises:
        Invalid: they have more subscriptions than such a large post can have.
    """
    listening = {queue: policy} if policy.subscribed else {}
    for target in {copy.queue for message in new for copy in message.copies if message.copies}:
        if (of_copy := await policies.get(target)).subscribed:
            listening[target] = of_copy
    if not listening:
        return new
    _check_fan_out(new, queue, {to: len(policy.ordered) for to, policy in listening.items()})
    extended: list[NewMessage] = []
    async for _, part in in_steps(new):
        for message in part:
            entries = [(queue, message.ttl_ms, message.delay_ms)]
            entries += [(copy.queue, copy.ttl_ms, copy.delay_ms) for copy in message.copies]
            outbox = [
                entry
                for to, ttl_ms, delay_ms in entries
                if to in listening
                for entry in _outbox_messages(to, listening[to], message, now, ttl_ms, delay_ms)
            ]
            extended.append(replace(message, outbox=tuple(outbox)))
    return extended


def _check_fan_out(
    new: Sequence[NewMessage], queue: QueueRef, ordered: Mapping[QueueRef, int]
) -> None:
    """Refuse a post that makes too many deliveries in order, or of too large copies.

    `ordered` counts the ordered subscriptions of the queues that have subscriptions.
    """
    count, size = len(new) * ordered.get(queue, 0), 0
    for message in new:
        of_copies = [ordered[copy.queue] for copy in message.copies if copy.queue in ordered]
        count += sum(of_copies)
        size += (sum(of_copies) + len(of_copies)) * len(message.body)
    if count > MAX_ORDERED_DELIVERIES:
        raise Invalid(
            f"{len(new)} messages would make {count} deliveries in order; one post may make "
            f"{MAX_ORDERED_DELIVERIES}: post fewer messages at once."
        )
    if size > MAX_COPIED_BYTES:
        raise Invalid(
            f"The filters of this project would make deliveries of {size} bytes of this post; "
            f"{MAX_COPIED_BYTES} are allowed: post fewer or smaller messages at once."
        )


def _outbox_messages(  # noqa: PLR0917 - the parts of an entry in their order
    queue: QueueRef, policy: "Policy", message: NewMessage, now: int, ttl_ms: int, delay_ms: int
) -> list[OutboxEntry]:
    delays = policy.is_delayed
    waits_ms = delay_ms if delays and not policy.notify_on_post else 0
    entry = OutboxMessage(
        _NO_ID,
        queue.project,
        queue.name,
        now,
        now + ttl_ms,
        ttl_ms // 1000,
        msgspec.Raw(message.body),
        delay_ms // 1000 if delays else None,
        now + waits_ms if waits_ms else 0,
        int(policy.version or 0),
        policy.ordered,
        trace_of(message.headers),
    )
    body, wait = encode(entry), max(waits_ms - LEAD_MS, 0)
    # Those of ordered subscriptions come first: who finds the last one finds these in their queues.
    lives = {ordered_queue(queue.project, one): ttl_ms + BURIED_MS for one in policy.ordered}
    lives[outbox_queue(queue.project)] = ttl_ms + LEAD_MS
    return [OutboxEntry(to, body, _ID_AT, life_ms, wait) for to, life_ms in lives.items()]


def trace_of(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The W3C trace context in the headers of a message; empty if there is none."""
    if not headers:
        return {}
    given = {name.lower(): value for name, value in headers.items()}
    if not _TRACE_PARENT.fullmatch(given.get("traceparent", "")):
        return {}
    found = {"traceparent": given["traceparent"]}
    if _TRACE_STATE.fullmatch(state := given.get("tracestate", "")):
        found["tracestate"] = state
    return found


def payload_of(entry: OutboxMessage) -> bytes:
    """The notification of a message, with upstream's keys and no others."""
    document: dict[str, object] = {"body": entry.body, "ttl": entry.ttl}
    if entry.delay is not None:
        document["delay"] = entry.delay
    document["queue_name"] = name_of(QueueRef(entry.project, entry.queue))
    document["Message_Type"] = "Notification"
    return encode(document)


async def put(messages: MessageStore, queue: QueueRef, *new: NewMessage) -> None:
    """Post as the server itself."""
    await messages.post(queue, new, client_id=CLIENT_ID, version=None)


async def deliver_later(
    messages: MessageStore, deliveries: Sequence[tuple[Delivery, float]], now: int
) -> None:
    """Have deliveries tried after so many seconds; about a mebibyte of them is put in one step.

    One whose message expires before its next try comes then, to be reported as failed.
    """
    new: list[NewMessage] = []
    size = 0
    for number, (delivery, wait) in enumerate(deliveries, 1):
        body, left = encode(delivery), max(delivery.until - now, LEAST_LIFE_MS)
        new.append(NewMessage(body, left + BURIED_MS, min(round(wait * 1000), left)))
        size += len(body)
        if size >= _LATER_BYTES or number == len(deliveries):
            await put(messages, retry_queue(delivery.project), *new)
            await asyncio.sleep(0)
            new, size = [], 0


_BATCH = 100
_MOST_AT_ONCE, _MOST_BYTES = 400, 16_777_216
"""Messages of an internal queue that one process works on, and bytes, after which it claims none.

A claim of large messages has 8 MiB, and each message is in memory twice while it is delivered.
"""
_WAIT = 20.0
_PAUSE = 1.0
_GATHER = 0.01
"""Seconds for which finished messages are gathered, to be deleted in one step."""


@dataclass(eq=False, repr=False)
class QueueWorker(BackgroundWorker):
    """Claim messages while there is room, and `act` on each in a task of its own.

    What is under way at a stop comes again when its lease ends.
    """

    queue: QueueRef
    act: Callable[[Message], Awaitable[None]]
    messages: MessageStore
    long_polling: LongPolling

    def __post_init__(self) -> None:
        self._work = Background("deliveries", self._begin_some, rest=_PAUSE)
        self._deleting = Background("deleting deliveries", self._delete_done, rest=_PAUSE)
        self._under_way: dict[asyncio.Task[None], int] = {}
        self._done: list[str] = []

    def start(self) -> None:
        """Begin, in tasks of the running event loop."""
        super().start()
        self._deleting.start()

    async def stop(self) -> None:
        """End; idempotent."""
        await super().stop()
        await self._deleting.stop()
        await cancelled(*self._under_way)
        with LoggedErrors("some deliveries, which come again"):
            await self._delete_done()

    async def _begin_some(self) -> float:
        """Begin to act on what the queue has, or wait for it; answer the seconds to rest."""
        room = _MOST_AT_ONCE - len(self._under_way)
        if room <= 0 or sum(self._under_way.values()) >= _MOST_BYTES:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            return 0.0
        found, rest = await self._claim(min(room, _BATCH))
        for message in found:
            task = asyncio.create_task(self._act(message))
            self._under_way[task] = len(message.body)
            task.add_done_callback(self._under_way.pop)
        return rest

    async def _claim(self, limit: int) -> tuple[Sequence[Message], float]:
        async def ask() -> Sequence[Message] | None:
            request = ClaimRequest(
                limit, delay_mode=DelayMode.HONOUR, ttl_ms=LEASE_MS, client_id=CLIENT_ID
            )
            return (await self.messages.claim(self.queue, request)).messages or None

        try:
            never = asyncio.get_running_loop().create_future()
            found = await self.long_polling.until_found(self.queue, _WAIT, ask, gone=never)
        except TooMany:  # so many clients wait that this worker may not
            return await ask() or (), _PAUSE
        return found or (), _PAUSE if found is None and self.long_polling.is_closed else 0.0

    async def _act(self, message: Message) -> None:
        with LoggedErrors("a delivery, which comes again when its lease ends"):
            await self.act(message)
            self._done.append(message.id)
            self._deleting.wake()

    async def _delete_done(self) -> float:
        """Delete what is done, many at a time, even if another process holds it by now."""
        await asyncio.sleep(_GATHER)
        done, self._done = self._done, []
        if done:
            try:
                await self.messages.delete(self.queue, done, claim_ids=None)
            except BaseException:
                self._done = [*done, *self._done]
                raise
        return 0.0 if self._done else _WAIT
