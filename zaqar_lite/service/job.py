"""Jobs: one act on many messages of a queue, chosen by their ids or by a filter.

What is chosen is frozen when the job begins: the ids, or the filter with an upper position.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import msgspec
from msgspec import Struct

from zaqar_lite.domain.filters import Filter, parse_filter
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.instants import read_instant
from zaqar_lite.domain.json_values import is_same
from zaqar_lite.domain.models import Message

MAX_AT_ONCE = 100
"""Up to this many ids are acted on within their request; more make a job."""
MAX_IDS = 1_000
MAX_RATE = 1_000_000
MAX_PATH = 256
"""Characters of the path to a value in a body."""
SAMPLE = 10
MAX_TARGETS = 100
"""Queues that a job tells apart when it counts where letters went; "" stands for the others."""


class JobAct(Enum):
    """What a job does: put letters back; or cancel, move or fire what is delayed."""

    REDRIVE = "redrive"
    CANCEL = "cancel"
    MOVE = "move"
    FIRE = "fire"


class BodyPart(Struct, forbid_unknown_fields=True):
    """A value in the body, by names and indexes with dots between them, and what it must be."""

    path: str
    equals: Any


class Choice(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages are meant: every condition that is given must hold.

    `older_than` is in seconds since the post; `due_before` and `due_after` are instants (RFC 3339)
    of the end of a delay. `reason` is what was given for the last failure, or why the letter died
    (`max_failures`). `where` is in the language of `_filter`, over the headers and `reason` (the
    first of the two that is there), `source`, `claim_count`, `failure_count`, `redriven` and
    `group`.
    """

    reason: str | None = None
    source: str | None = None
    older_than: int | None = None
    due_before: str | None = None
    due_after: str | None = None
    group: str | None = None
    headers: dict[str, str] | None = None
    body: BodyPart | None = None
    where: str | None = None


class Order(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is asked for; `to` is a queue of a redrive, and an instant of a move.

    A move with `if_due` (an instant) leaves alone what is not due in that second.
    """

    ids: list[str] | None = None
    filter: Choice | None = None
    dry_run: bool = False
    max_per_second: int | None = None
    limit: int | None = None
    to: str | None = None
    by: int | None = None
    if_due: str | None = None
    reset: Literal["counts", "none"] = "counts"
    delay: int = 0
    ttl: int | None = None
    force: bool = False


class Job(Struct):
    """A job as it is stored; instants in milliseconds.

    cursor    the position, or the place among the ids, up to which everything was looked at
    until     the highest position that is meant; `total` messages were there at the start
    targets   how many letters went to which queue, or would go
    plan      of a move `by` seconds: when each message of the step under way is to be due, so that
              a step that is done again after a crash moves none of them twice
    under_way how many messages the step chose that was begun when this was written, `reached` up to
              where it looked, and `bound` how many of them were to go to which queue: whoever goes
              on after a crash counts which of them are done by which are there no more
    holder    the process that works on it, until `held_until`
    """

    id: str
    queue: str
    act: JobAct
    order: Order
    created_at: int
    until: int = 0
    total: int = 0
    state: Literal["running", "completed", "cancelled", "failed"] = "running"
    cursor: int = 0
    examined: int = 0
    selected: int = 0
    done: int = 0
    refused: dict[str, int] = {}
    targets: dict[str, int] = {}
    sample: list[dict[str, Any]] = []
    plan: dict[str, int] = {}
    under_way: int = 0
    reached: int = 0
    bound: dict[str, int] = {}
    ended_at: int = 0
    error: str = ""
    holder: str = ""
    held_until: int = 0

    def encode(self) -> bytes:
        """As a record's value."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> "Job":
        """Read a record's value."""
        return _decode(value)

    def is_over(self) -> bool:
        """Whether nothing more will be done."""
        return self.state != "running"

    @property
    def wants_all(self) -> bool:
        """Whether it has all that its limit allows."""
        return self.order.limit is not None and self.selected >= self.order.limit

    def count(self, done: int, refused: Mapping[str, int], targets: Mapping[str, int]) -> None:
        """Count what was done, what was left alone, and where letters went."""
        self.done += done
        self.refuse(refused)
        for name, count in targets.items():
            known = name in self.targets or len(self.targets) < MAX_TARGETS
            self.targets[name if known else ""] = self.targets.get(name if known else "", 0) + count

    def refuse(self, reasons: Mapping[str, int]) -> None:
        """Count what was left alone, by the reason."""
        for reason, count in reasons.items():
            if count:
                self.refused[reason] = self.refused.get(reason, 0) + count

    def begin_step(self, chosen: int, reached: int, bound: Mapping[str, int]) -> None:
        """Note what a step is about to do."""
        self.under_way, self.reached, self.bound = chosen, reached, dict(bound)

    def complete(self) -> None:
        """Note that all was looked at; how large a group is, is known only then."""
        self.state = "completed"
        if self.order.filter is not None and self.order.filter.group is not None:
            self.total = self.examined

    def end_step(self, cursor: int) -> None:
        """Note that what a step did is counted."""
        self.cursor, self.under_way, self.reached, self.bound = cursor, 0, 0, {}


_decode = msgspec.json.Decoder(Job).decode


class Chooser:
    """Tells which messages a choice means, as of the instant `at` (ms), among those of its group.

    Raises:
        Invalid: an instant or the filter can't be read.
    """

    def __init__(self, choice: Choice | None, at: int) -> None:
        self._choice = choice = choice or Choice()
        self._means_all = choice == Choice()
        self._before = None if choice.due_before is None else read_instant(choice.due_before)
        self._after = None if choice.due_after is None else read_instant(choice.due_after)
        self._posted_before = None if choice.older_than is None else at - choice.older_than * 1000
        self._where = None if choice.where is None else Filter(parse_filter(choice.where))
        self._path = () if choice.body is None else tuple(choice.body.path.split("."))

    @property
    def group(self) -> str | None:
        """The group whose messages are read; the store finds them."""
        return self._choice.group

    @property
    def needs_attempts(self) -> bool:
        """Whether the messages must be read with their attempts."""
        return self._choice.reason is not None or self._where is not None

    @property
    def needs_content(self) -> bool:
        """Whether bodies, headers or instants of posting decide."""
        choice = self._choice
        others = (choice.older_than, choice.headers, choice.body, choice.where)
        return any(one is not None for one in others)

    def means(self, message: Message) -> bool:
        """Whether a message is meant."""
        choice, origin = self._choice, message.origin
        if self._means_all:
            return True
        due = message.delay_expires_at or 0
        headers = message.headers or {}
        return (
            (choice.reason is None or choice.reason in _reasons(message))
            and (choice.source is None or (origin is not None and origin.source == choice.source))
            and (self._posted_before is None or message.created_at <= self._posted_before)
            and (self._before is None or 0 < due < self._before)
            and (self._after is None or due > self._after)
            and all(headers.get(name) == text for name, text in (choice.headers or {}).items())
            and (self._where is None or self._where(_facts(message)))
            and self._has_body(message)
        )

    def _has_body(self, message: Message) -> bool:
        wanted = self._choice.body
        if wanted is None:
            return True
        value = msgspec.json.decode(message.body)
        for name in self._path:
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return False
        return is_same(value, wanted.equals)


def _reasons(message: Message) -> list[str]:
    """Why the last hand-out failed, and why the letter died, as far as there are such."""
    last = message.attempts[-1].reason if message.attempts else None
    died = None if message.origin is None else message.origin.reason
    return [reason for reason in (last, died) if reason is not None]


def _facts(message: Message) -> dict[str, str]:
    facts = {
        **(message.headers or {}),
        "claim_count": str(message.claim_count),
        "failure_count": str(message.failure_count),
    }
    origin, group = message.origin, group_of(message.headers)
    if origin is not None:
        facts |= {
            "reason": _reasons(message)[0],
            "source": origin.source,
            "redriven": str(origin.redriven),
        }
    if group is not None:
        facts["group"] = group
    return facts
