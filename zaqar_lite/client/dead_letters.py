"""Dead letters: count them by source, and move them back.

Moving is safe against a kill at any moment: a letter is posted to its target with its own id as
the idempotency key, and only then deleted. Killed in between, it is in both queues; the next run
posts it again, which the target's server recognises by the key (while it remembers it) and stores
nothing, and then deletes it. Never is it in neither.
"""

import dataclasses
import datetime as dt
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.endpoints import messages
from zaqar_lite.client.errors import BadRequest
from zaqar_lite.client.models import Message, NewMessage, RawBody
from zaqar_lite.client.wire import Call

# The server's default max_messages_post_size, and what ttl, delay and key add to a message.
POST_BYTES = 262_144
ROOM_FOR_ATTRIBUTES = 256


@dataclasses.dataclass(slots=True)
class Source:
    """The letters of one source queue: how many, since when, and how often they were claimed.

    `queue` is None for messages that no queue's dead-letter policy has moved here.
    """

    queue: str | None
    letters: int = 0
    claims: int = 0
    oldest: dt.datetime | None = None
    newest: dt.datetime | None = None

    def add(self, letter: Message) -> None:
        """Count a letter."""
        self.letters += 1
        origin = letter.dead_letter
        if origin is None:
            return
        self.claims += origin.claim_count
        if origin.moved_at is not None:
            self.oldest = min(self.oldest or origin.moved_at, origin.moved_at)
            self.newest = max(self.newest or origin.moved_at, origin.moved_at)


@dataclasses.dataclass(slots=True)
class Redriven:
    """What a redrive did, or, of a dry run, would have done.

    `moved` counts by target; `passed_over` are letters that the filter left, `homeless` those
    that name no source and had no `to`, `refused` tells by id why the target did not take one.
    """

    moved: dict[str, int] = dataclasses.field(default_factory=dict)
    passed_over: int = 0
    homeless: int = 0
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    dry_run: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RedriveOptions:
    """What to move back, and where.

    Attributes:
        to: the target; None sends each letter to the queue that it came from.
        source: only letters of this source.
        where: only letters for which this is true; it sees the message with its body decoded.
        limit: letters at most.
        dry_run: only count.
        ttl: seconds that the message lives in the target; None for the target's default.
        delay: seconds until it is claimable there, if the target is a delayed queue.
        on_moved: is told about each letter moved, with its target.
    """

    to: str | None = None
    source: str | None = None
    where: Callable[[Message], bool] | None = None
    limit: int | None = None
    dry_run: bool = False
    ttl: int | None = None
    delay: int | None = None
    on_moved: Callable[[Message, str], None] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """Letters for one target that go in one post."""

    target: str
    letters: Sequence[Message]


class Redrive:
    """Decide what moves where and count it; no I/O."""

    def __init__(self, queue: str, options: RedriveOptions) -> None:
        if options.to == queue:
            message = f"{queue} cannot be moved into itself"
            raise ValueError(message)
        self.queue = queue
        self._options = options
        self.result = Redriven(dry_run=options.dry_run)

    @property
    def finished(self) -> bool:
        """Whether the limit is reached."""
        limit = self._options.limit
        return limit is not None and sum(self.result.moved.values()) >= limit

    def moves(self, page: Iterable[Message]) -> deque[Move]:
        """Return what to move of one page, within the limit, each small enough for one post."""
        left = self._options.limit
        if left is not None:
            left -= sum(self.result.moved.values())
        chosen: dict[str, list[Message]] = {}
        for letter in page:
            if left is not None and left <= 0:
                break
            target = self._target(letter)
            if target is not None:
                chosen.setdefault(target, []).append(letter)
                left = None if left is None else left - 1
        return deque(
            Move(target, part) for target, letters in chosen.items() for part in _posts(letters)
        )

    def calls(self, move: Move) -> tuple[Call[Any], ...]:
        """Return the two calls of a move, in the order that makes it safe; none in a dry run."""
        if self._options.dry_run:
            return ()
        encoded = [
            encoding.encode_message(
                NewMessage(
                    body=letter.body,
                    ttl=self._options.ttl,
                    delay=self._options.delay,
                    idempotency_key=letter.id,
                    headers=letter.headers,
                )
            )
            for letter in move.letters
        ]
        # Forced: the letter lives on in the target, so its copy here must go even if somebody
        # claimed it since the page was read.
        ids = [letter.id for letter in move.letters]
        return (
            messages.post(move.target, encoded),
            messages.delete_messages(self.queue, ids, claim_ids=None, force=True),
        )

    def count(self, move: Move) -> None:
        """Count a move that is done."""
        moved = self.result.moved
        moved[move.target] = moved.get(move.target, 0) + len(move.letters)
        if self._options.on_moved is not None:
            for letter in move.letters:
                self._options.on_moved(letter, move.target)

    def refused(self, move: Move, error: BadRequest) -> list[Move]:
        """Return the moves to try instead of one that the target refused, one letter each.

        A single letter that is refused (too large for that queue, say) stays where it is.
        """
        if len(move.letters) > 1:
            return [Move(move.target, [letter]) for letter in move.letters]
        self.result.refused[move.letters[0].id] = str(error)
        return []

    def _target(self, letter: Message) -> str | None:
        source = letter.dead_letter.source if letter.dead_letter is not None else None
        if self._options.source not in {None, source} or not self._wanted(letter):
            self.result.passed_over += 1
            return None
        target = self._options.to or source
        if target is None or target == self.queue:
            self.result.homeless += 1
            return None
        return target

    def _wanted(self, letter: Message) -> bool:
        if self._options.where is None:
            return True
        body = letter.body
        if isinstance(body, RawBody):
            letter = dataclasses.replace(letter, body=encoding.loads(bytes(body)))
        return self._options.where(letter)


def _posts(letters: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Cut letters into parts that fit into one post each."""
    part: list[Message] = []
    size = encoding.ENVELOPE_BYTES
    for letter in letters:
        length = len(encoding.encode_message(NewMessage(body=letter.body, headers=letter.headers)))
        length += ROOM_FOR_ATTRIBUTES
        if part and size + length > POST_BYTES:
            yield part
            part, size = [], encoding.ENVELOPE_BYTES
        part.append(letter)
        size += length
    if part:
        yield part
