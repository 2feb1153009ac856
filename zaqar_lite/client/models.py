"""What the client takes and gives back: frozen values, seconds for durations, UTC for instants."""

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlencode

if TYPE_CHECKING:
    import typing_extensions

    B = typing_extensions.TypeVar("B", default=Any)
else:
    B = TypeVar("B")
D = TypeVar("D")
SIGNATURE_HEADER = "URL-Signature"


class RawBody(bytes):
    """A body that is JSON text already: sent, or handed over, byte for byte."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to post.

    Attributes:
        body: anything that JSON can hold, or a `RawBody`.
        ttl: seconds until it expires; None for the queue's default.
        delay: seconds until it becomes claimable. Only a delayed queue (one whose
            `_default_message_delay` is not 0) looks at it; None for that default.
        deliver_at: the instant it becomes claimable, instead of `delay`; it must have a time zone.
            How far away it may be is the server's to say, which can be told another limit while it
            runs: a batch with one that is too far is a BadRequest, and nothing of it is stored.
        idempotency_key: the server stores one message per queue and key, however often it is
            posted while it remembers the key.
        headers: the message's own headers, strings.
        group: a group that jobs of the server can choose by.
    """

    body: Any
    ttl: int | None = None
    delay: int | None = None
    deliver_at: dt.datetime | None = None
    idempotency_key: str | None = None
    headers: Mapping[str, str] | None = None
    group: str | None = None


class Ids(list[str]):
    """The ids of the messages of one post, in order.

    `duplicates` are those that were stored already, by an earlier post with the same idempotency
    key: this post did not add them.
    """

    def __init__(self, ids: Iterable[str], duplicates: Sequence[str] = ()) -> None:
        super().__init__(ids)
        self.duplicates = duplicates


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A hand-out of a message that has ended without its being deleted.

    Attributes:
        number: the message's claim count then.
        claimed_at: when it was handed out.
        ended_at: when that ended.
        outcome: `failed`, `lapsed` (its lease ended by time), `released` or `dead`.
        delay: seconds that the message waited afterwards.
        reason: why, in a word: the consumer's, or one of the server's own.
        detail: why, in more words of the consumer.
        client_id: who had it.
    """

    number: int
    claimed_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    outcome: str = ""
    delay: int = 0
    reason: str | None = None
    detail: str | None = None
    client_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where a message in a dead-letter queue came from, and why it is there.

    `reason` is `max_claims`, `max_failures`, `rejected`, or what a consumer gave; `redriven` tells
    how often a server put the message back. One that was put back keeps all this.
    """

    source: str
    moved_at: dt.datetime | None = None
    claim_count: int = 0
    last_claim_id: str | None = None
    last_client_id: str | None = None
    reason: str | None = None
    redriven: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Message(Generic[B]):
    """A message as the server shows it; `Message[Order]` is one whose body is an Order.

    All from `claim_count` on is there only when details were asked for. `failure_count` counts
    what was released as failed or lapsed; `parked_until` is when a message that was given back
    with a delay can be claimed again; `attempts` are the hand-outs that have ended, the first and
    the last ones, oldest first; `group` is the one that it was posted with.
    """

    queue: str
    id: str
    body: B
    ttl: int
    age: int | float
    href: str
    claim_id: str | None = None
    checksum: str | None = None
    claim_count: int | None = None
    created: dt.datetime | None = None
    delay_expires: dt.datetime | None = None
    headers: Mapping[str, str] | None = None
    dead_letter: DeadLetter | None = None
    failure_count: int | None = None
    parked_until: dt.datetime | None = None
    attempts: tuple[Attempt, ...] | None = None
    group: str | None = None

    def decoded(self, decoder: Callable[[Any], D]) -> "Message[D]":
        """Return the message with the body that `decoder` makes of it; what it raises is raised."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return Message(**{**fields, "body": decoder(self.body)})


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePage:
    """One page of a listing, false when it is empty; `marker` leads to the next.

    It is None after the last.
    """

    messages: Sequence[Message]
    marker: str | None

    def __bool__(self) -> bool:
        return bool(self.messages)


@dataclasses.dataclass(frozen=True, slots=True)
class AccessKey:
    """A key of the server.

    Attributes:
        project: None for an operator's, which is bound to no project.
        grants: what it opens, `VERB:QUEUES` each; with a `!` in front what it does not.
        key: its text, only where it was just made; nobody can see it again.
        aws_secret_access_key: what SQS's clients sign with, whose access key id is `id`; only where
            it was just made, and the server speaks SQS.
    """

    id: str
    project: str | None
    grants: tuple[str, ...]
    created_at: dt.datetime | None
    expires_at: dt.datetime | None
    disabled: bool
    description: str = ""
    key: str | None = dataclasses.field(default=None, repr=False)
    aws_secret_access_key: str | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class DataKey:
    """A key that seals a project's messages; `server_key` is the one that seals this key."""

    id: str
    server_key: str
    created_at: dt.datetime | None
    current: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ProjectQuota:
    """What a project may have, and has.

    Attributes:
        quotas: the bound of each quota by its name; None for no bound.
        usage: what the project has; None for what the server could not count in time.
        own: what was set for this project alone; None where only its own project asked.
    """

    project: str
    quotas: Mapping[str, int | None]
    usage: Mapping[str, int | None]
    own: Mapping[str, int | None] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """A queue in a listing; `metadata` only when details were asked for."""

    name: str
    href: str
    metadata: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MessageAge:
    """The oldest or newest message of a queue; `age` in seconds."""

    href: str
    age: int | float
    created: dt.datetime | None = None

    @property
    def message_id(self) -> str:
        """The message's id."""
        return self.href.partition("?")[0].rpartition("/")[2]


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """How many messages a queue holds.

    `ready` and `delayed` are None on a server that does not tell them apart (Zaqar itself).
    """

    total: int
    free: int
    claimed: int
    ready: int | None = None
    delayed: int | None = None
    oldest: MessageAge | None = None
    newest: MessageAge | None = None

    @property
    def claimable(self) -> int:
        """How many messages can be claimed now: on a server that tells, without delayed ones."""
        return self.free if self.ready is None else self.ready


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """A part of a queue: the messages after `marker` up to and including `until`.

    None at either end means the queue's own end.
    """

    marker: str | None = None
    until: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A claim as the server shows it: what it holds, and for how many seconds."""

    id: str
    queue: str
    ttl: int
    age: int | float
    messages: Sequence[Message]


@dataclasses.dataclass(frozen=True, slots=True)
class SignedURL:
    """A pre-signed permission for one queue: give it to `SignedAuth`, or to anyone as JSON."""

    project: str
    paths: Sequence[str]
    methods: Sequence[str]
    expires: str
    signature: str = dataclasses.field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The signature and what it covers, as a request carries them."""
        return {
            SIGNATURE_HEADER: self.signature,
            "URL-Expires": self.expires,
            "URL-Methods": ",".join(self.methods),
            "URL-Paths": ",".join(self.paths),
            "X-Project-ID": self.project,
        }

    def address(self, url: str, client_id: str | None = None) -> str:
        """Write the address of the queue's events, for a browser's EventSource (path "events").

        Whoever has it can read the queue until it expires, so it is a secret.

        Args:
            url: the server, as the browser reaches it.
            client_id: who reads, a UUID; a fresh one by default.

        Raises:
            ValueError: the permission is not for events.
        """
        path = next((path for path in self.paths if path.endswith("/events")), None)
        if path is None:
            message = "the permission is not for events: share(queue, paths=['events'])"
            raise ValueError(message)
        carried = {**self.headers, "Client-ID": client_id or str(uuid.uuid4())}
        return f"{url.rstrip('/')}{path}?{urlencode(carried)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """One line of a queue's history: a message that was deleted or that failed for good."""

    id: str
    at: dt.datetime | None
    attempts: int
    consumers: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """A message store of the server.

    Attributes:
        uri: without its credentials.
        weight: its share of new queues; 0 for none.
        flavor: the flavor that it serves; None for queues without one.
        options: its driver's settings by name, without their values; None where they were not
            asked for.
    """

    name: str
    uri: str
    weight: int
    flavor: str | None = None
    options: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """A name for some pools; a queue with it lies in one of them."""

    name: str
    pools: tuple[str, ...]
    capabilities: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PoolDrain:
    """How far the queues of a pool have moved to others.

    Attributes:
        state: `running` or `completed`.
        queues_left: queues that have not moved, or not all of them.
        problem: what keeps it from going on; None for nothing.
    """

    pool: str
    state: str
    queues_left: int
    messages_moved: int
    problem: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """A receiver of a queue's messages.

    Attributes:
        source: the queue's name.
        age: seconds since it was made or its ttl was changed.
        options: the values of `post_headers` are masked.
        disabled: why the server stopped to deliver; None while it delivers.
    """

    id: str
    source: str
    subscriber: str
    ttl: int
    age: int
    options: Mapping[str, Any]
    confirmed: bool
    disabled: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver a message.

    Attributes:
        id: the message's.
        status: what the receiver answered; None when it did not, and `error` says why.
        answer: the first KiB of it.
        next_at: when it is tried again.
    """

    id: str
    at: dt.datetime | None
    attempt: int
    outcome: str
    status: int | None
    milliseconds: int
    answer: str
    error: str
    next_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A message that could not be delivered, with the notification that was sent."""

    id: str
    message_id: str
    at: dt.datetime | None
    attempts: int
    reason: str
    message: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """What a receiver answered to a test notification."""

    outcome: str
    status: int | None
    milliseconds: int
    answer: str
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What a job has done so far.

    Attributes:
        path: where the server shows the job; empty if everything was done at once.
        state: running, completed, cancelled or failed.
        total: messages that were there at the start; `examined` of them were looked at.
        selected: messages that the job is about; `done` of them are done.
        refused: how many messages were left as they are, by the reason.
        targets: how many letters went to each queue, or would go in a dry run.
        rate: messages a second.
        remaining: seconds until the end; None if unknown.
        sample: up to ten of the selected messages, in a dry run.
    """

    path: str
    id: str
    state: str
    total: int
    examined: int
    selected: int
    done: int
    refused: Mapping[str, int]
    rate: float
    remaining: int | None
    sample: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None
    targets: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be done."""
        return self.state != "running"
