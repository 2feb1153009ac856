"""Names, states and contents: everything that this driver writes, as text and back.

The layout itself is told in the package's docstring. A state travels as parameters of a content
type, because that is the only thing of ours that a Swift listing shows.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from hashlib import sha256
from typing import Any, NamedTuple, Self
from urllib.parse import quote, unquote

from msgspec import structs

from zaqar_lite.domain.models import Message, Origin, QueueRef

ATTEMPTS, CLAIMS, INDEX, KEYS, MESSAGES = "a/", "c/", "i/", "k/", "m/"
BEFORE_TAIL, TAIL = "l/", "l/tail"
AFTER_MESSAGES = "m0"
"""The marker before which a listing shows the last message."""
DELETE_AT_SLACK_S = 300
"""By how many seconds X-Delete-At is later than a deadline: Swift's clocks may differ from ours."""
_TYPE = "application/x-zaqar-"


class Containers:
    """The names of containers; projects are hashed, because they are longer than a name may be."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.queues = f"{prefix}.queue."
        self.records = f"{prefix}.records."
        self.exposing = f"{prefix}.exposing"
        self.kinds = f"{prefix}.kind."

    def queue(self, queue: QueueRef) -> str:
        """The container of a queue's messages, claims and keys."""
        return f"{self.queues}{digest(queue.project)}.{queue.name}"

    def queue_name(self, container: str) -> str:
        """The name of the queue whose container this is."""
        return container[len(self.queues) + 33 :]

    def project(self, project: str) -> str:
        """The container of a project's queue records."""
        return f"{self.records}{digest(project)}"

    def kind(self, kind: str) -> str:
        """The container of the records of a kind."""
        return f"{self.kinds}{quote(kind, safe='')}"


def digest(text: str) -> str:
    """What stands for a project or a group, whose text may be too long."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def message_name(position: int, message_id: str) -> str:
    """The name of a message: it sorts by position and never changes."""
    return f"{MESSAGES}{position:016x}/{message_id}"


def original_name(message_id: str) -> str:
    """The name of a message that is still in the queue that it was posted to."""
    return f"{MESSAGES}{message_id[:16]}/{message_id}"


def attempts_name(name: str) -> str:
    """The name of the history of the message with this name."""
    return ATTEMPTS + name.removeprefix(MESSAGES)


def position_of(name: str) -> int:
    """The position in the name of a message or of its history."""
    return int(name[2:18], 16)


def after_position(position: int) -> str:
    """The marker of a listing that begins after a position."""
    return f"{MESSAGES}{position:016x}0"  # '0' is the character after '/'


def key_name(kind: str, key: str) -> str:
    """The name of an idempotency key: `kind` is m for a message's, b for a batch's."""
    return f"{KEYS}{kind}/{sha256(key.encode(errors='surrogatepass')).hexdigest()}"


def key_expires_at(content_type: str) -> int:
    """When a key is forgotten."""
    return int(parameters(content_type).get("x", 0))


def client_digest(client_id: str) -> str:
    """What a listing shows of the Client-ID that posted: enough to leave out one's own."""
    return sha256(client_id.encode(errors="surrogatepass")).hexdigest()[:16]


def parameters(content_type: str) -> dict[str, str]:
    """The parameters of a content type; whitespace is Swift's to change."""
    parts = (part.strip().partition("=") for part in content_type.split(";")[1:])
    return {key: value for key, _, value in parts}


def content_type(kind: str, **values: str | int) -> str:
    """Write parameters as a content type; what is empty or 0 is left out."""
    return f"{_TYPE}{kind}" + "".join(f";{key}={value}" for key, value in values.items() if value)


_PARAMETERS = "e t u d n c x w s o f to from at mt y g z".split()  # noqa: SIM905 - one line
"""How a content type names the fields of a `State`, in their order."""
_NUMBERS = dict.fromkeys("etdnxsfz", 10) | {"mt": 10, "at": 16}
_QUOTED = ("w", "y")


@dataclass(frozen=True, slots=True)
class State:
    """What changes about a message, and the little more that a listing must show.

    `claim_id`, `claim_client` and `claimed_at` are of the last claim, which holds the message until
    `claim_expires_at`. `ended` is how that hand-out ended, once it has: then the message is parked
    until `claim_expires_at`.

    `leaving` is the container that the message moves to, and `move_position` its position there.
    It moves for `move_reason`, which is MOVED where a client asked for it. `arriving` is set on the
    copy until the original is gone: the container that the message comes from, and `move_position`
    is its position there.
    """

    expires_at: int  # e: milliseconds since 1970, as all instants
    ttl_ms: int  # t: that led to it
    poster: str  # u: digest of the Client-ID that posted, for echo
    delay_expires_at: int = 0  # d
    claim_count: int = 0  # n
    claim_id: str = ""  # c
    claim_expires_at: int = 0  # x
    claim_client: str = ""  # w
    claimed_at: int = 0  # s
    ended: str = ""  # o
    failure_count: int = 0  # f
    leaving: str = ""  # to
    arriving: str = ""  # from
    move_position: int = 0  # at: in hexadecimal
    move_ttl_ms: int = 0  # mt
    move_reason: str = ""  # y
    group: str = ""  # g: digest of its group
    size: int = 0  # z: bytes of its body

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the state from a content type."""
        values: dict[str, Any] = {"expires_at": 0, "ttl_ms": 0, "poster": ""}
        for key, value in parameters(text).items():
            if key in _NUMBERS:
                values[_NAMES[key]] = int(value, _NUMBERS[key])
            elif key in _NAMES:
                values[_NAMES[key]] = unquote(value) if key in _QUOTED else value
        return cls(**values)

    def content_type(self) -> str:
        """Write the state."""
        values = dict(zip(_PARAMETERS, astuple(self), strict=True))
        values |= {key: quote(values[key], safe="") for key in _QUOTED}
        values["at"] = f"{self.move_position:x}" if self.move_position else ""
        return content_type("message", **values)

    def is_live(self, now: int) -> bool:
        """Whether readers may see it: not expired, and not between two queues."""
        return self.expires_at > now and not self.leaving and not self.arriving

    def is_claimed_or_parked(self, now: int) -> bool:
        """Whether it is claimed or parked."""
        return self.claim_expires_at > now

    def is_claimed(self, now: int) -> bool:
        """Whether a live claim holds it."""
        return self.claim_expires_at > now and not self.ended

    def has_lapsed(self, now: int) -> bool:
        """Whether its last lease has ended by time, and its state does not tell so yet."""
        return 0 < self.claim_expires_at <= now and not self.ended

    @property
    def has_attempts(self) -> bool:
        """Whether a hand-out has ended, so that there may be a history."""
        return self.claim_count > (0 if self.ended else 1)

    def is_delayed(self, now: int) -> bool:
        """Whether its delay is still to end."""
        return self.delay_expires_at > now

    def is_ready(self, now: int) -> bool:
        """Whether a claim may take it, whatever its delay."""
        return self.is_live(now) and not self.is_claimed_or_parked(now)

    def is_claimable(self, now: int) -> bool:
        """Whether a claim may take it; a message of a normal queue has no `d`."""
        return self.is_ready(now) and not self.is_delayed(now)

    @property
    def ready_at(self) -> int:
        """When a claim may take it at the earliest, as it is now."""
        return max(self.claim_expires_at, self.delay_expires_at)

    def held_until(self, now: int, ttl_ms: int, grace_ms: int) -> "State":
        """The state under a claim that lives `ttl_ms` from now: the ttl is raised where needed."""
        held = replace(self, claim_expires_at=now + ttl_ms)
        if self.expires_at < now + ttl_ms:
            held = replace(held, ttl_ms=ttl_ms + grace_ms, expires_at=now + ttl_ms + grace_ms)
        return held


_NAMES = dict(zip(_PARAMETERS, (field.name for field in fields(State)), strict=True))


@dataclass(slots=True)
class Listed:
    """A message as a listing shows it."""

    name: str
    state: State

    @property
    def was_moved(self) -> bool:
        """Whether it came from another queue, so that its id does not tell its position."""
        return self.name != original_name(self.id)

    def exists(self, birth: int, now: int) -> bool:
        """Whether readers may see it in a queue whose life began at the position `birth`."""
        return self.position >= birth and self.state.is_live(now)

    @property
    def position(self) -> int:
        """Its position in this queue."""
        return position_of(self.name)

    @property
    def id(self) -> str:
        """Its id."""
        return self.name[19:]


class Content(NamedTuple):
    """What does not change about a message: a line of JSON, and then the body as posted.

    `attempts` are those from before it was last redriven, as `Histories` writes them.
    """

    created_at: int
    client_id: str
    headers: dict[str, str] | None
    origin: Origin | None
    body: bytes
    attempts: Sequence[Sequence[Any]] = ()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read an object's content."""
        line, _, body = data.partition(b"\n")
        head: dict[str, Any] = json.loads(line)
        origin = head.get("origin")
        return cls(
            head["created"],
            head["client"],
            head.get("headers"),
            None if origin is None else Origin(*origin),
            body,
            head.get("attempts", ()),
        )

    def encode(self) -> bytes:
        """Write an object's content."""
        head = {
            "created": self.created_at,
            "client": self.client_id,
            "headers": self.headers,
            "origin": self.origin and list(structs.astuple(self.origin)),
            "attempts": self.attempts or None,
        }
        head = {key: value for key, value in head.items() if value is not None}
        return json.dumps(head).encode() + b"\n" + self.body


@dataclass(slots=True)
class Fetched(Listed):
    """A message as its own object tells it: the truth, where a listing only proposes."""

    content: Content

    def view(self, now: int) -> Message:
        """Show it to a reader."""
        state, content = self.state, self.content
        return Message(
            self.id,
            self.position,
            content.body,
            state.ttl_ms,
            content.created_at,
            state.expires_at,
            now,
            state.claim_id if state.is_claimed(now) else None,
            state.claim_count,
            content.client_id,
            state.delay_expires_at or None,
            content.headers,
            content.origin,
            state.failure_count,
            state.claim_expires_at if state.is_claimed_or_parked(now) and state.ended else None,
        )
