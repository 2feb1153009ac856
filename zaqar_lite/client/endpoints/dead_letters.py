"""Dead letters: list them, count them by source, and move them back.

Where the server does not move them back, the client does. A letter is claimed, posted to its target
with its own id as the idempotency key, and then deleted with its claim. Two redrives at once
therefore never take the same letter, and a redrive that is killed loses none. Killed between post
and delete, it leaves the letter in both queues. The next run posts the letter again, the server of
the target recognises the key (while it remembers it) and stores nothing, and the letter is deleted.
What is not moved stays claimed until the end, so that it is not claimed again.
"""

import contextlib
import dataclasses
import datetime as dt
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from zaqar_lite.client import arguments, serialization
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call
from zaqar_lite.client.endpoints import claims, jobs, messages, queues
from zaqar_lite.client.endpoints.requests import queue_path
from zaqar_lite.client.errors import BadRequest, ClaimLost, Refused, ServerWarning, ZaqarError
from zaqar_lite.client.models import Job, Message, NewMessage, RawBody
from zaqar_lite.client.posting import Batcher, PostOptions
from zaqar_lite.client.steps import Page, Pages, Steps, listing, method
from zaqar_lite.client.termination import ToTheEnd

T = TypeVar("T")
Batch = Sequence[tuple[Message, bytes]]
"""Letters with what is posted of each."""

# Seconds that the letters of a killed redrive stay claimed: the least that a server takes. It must
# be well below the time that the target's server remembers keys (600 s by default).
CLAIM_TTL = 60
RENEW_AFTER = CLAIM_TTL / 2
COUNTED = messages.Selection(details=True, raw=True)


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
    """What a redrive did, or what it would have done if it was a dry run.

    `moved` counts letters by their target. `passed_over` are letters that the filter excluded.
    `without_source` are letters that name no queue to go back to, when `to` was not given.
    `refused` tells by id why the target did not take a letter. `stayed` counts, by reason, the
    letters that a job of the server left where they are (`max_redrives`, for example).
    `held` are letters that somebody else has claimed (another redrive, or one that was killed less
    than a minute ago): run the redrive again for those. `lost` are letters that were posted, but
    whose claim lapsed before they were deleted: run it again while the server remembers keys (600 s
    by default), and the target has them once.
    """

    moved: dict[str, int] = dataclasses.field(default_factory=dict)
    passed_over: int = 0
    without_source: int = 0
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    stayed: dict[str, int] = dataclasses.field(default_factory=dict)
    held: int = 0
    lost: int = 0
    dry_run: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RedriveOptions:
    """What to move back, and where.

    Attributes:
        to: the target; None sends each letter to the queue that it came from.
        source: only letters of this source.
        where: only letters for which this is true; it sees the message with its body decoded. Or
            a text in the server's filter language, such as `reason = 'http_503'`, or a dict as the
            `filter` of the server's job, such as `{"body": {"path": "a.b", "equals": 7}}`.
        limit: letters at most.
        dry_run: only count.
        ttl: seconds that the message lives in the target; None for the target's default.
        delay: seconds until it is claimable there, if the target is a delayed queue.
        on_moved: is called for each letter that was moved, with its target.
    """

    to: str | None = None
    source: str | None = None
    where: Callable[[Message], bool] | str | Mapping[str, Any] | None = None
    limit: int | None = None
    dry_run: bool = False
    ttl: int | None = None
    delay: int | None = None
    on_moved: Callable[[Message, str], None] | None = None

    def __post_init__(self) -> None:
        """Raise TypeError for a field that holds what it does not take."""
        arguments.check_fields(self)

    @property
    def is_plain(self) -> bool:
        """Whether the server can do the redrive: no option is a function of the caller."""
        return not callable(self.where) and self.on_moved is None and self.limit != 0

    def check(self, queue: str) -> None:
        """Check what can be checked without the server.

        Raises:
            ValueError: the text says what is wrong.
        """
        if self.to == queue:
            message = f"{queue} cannot be moved into itself"
            raise ValueError(message)
        if self.limit is not None and self.limit < 0:
            message = f"limit is how many letters to move at most, not {self.limit}"
            raise ValueError(message)
        if self.source is not None and isinstance(self.where, Mapping) and "source" in self.where:
            message = "source is given twice: leave it out of `where`"
            raise ValueError(message)

    def order(self) -> dict[str, Any]:
        """Return what the server's job is asked to do."""
        wanted = dict(self.where) if isinstance(self.where, Mapping) else {"where": self.where}
        if self.source is not None:
            wanted["source"] = self.source
        return {
            "filter": {name: value for name, value in wanted.items() if value is not None},
            "to": self.to,
            "limit": self.limit,
            "dry_run": self.dry_run,
            "ttl": self.ttl,
            "delay": self.delay,
        }


class DeadLetters(BaseClient):
    """List, count and move back dead letters."""

    @listing
    def list_dead_letters(
        self, queue: str, *, source: str | None = None, raw: bool = False
    ) -> Pages[Message]:
        """Yield a queue's dead letters, claimed or not; `dead_letter` says where each came from."""
        return _pages(self, queue, source, raw=raw)

    @method
    def count_dead_letters(self, queue: str) -> Steps[list[Source]]:
        """Count a dead-letter queue's letters by the queue that they came from."""
        sources: dict[str | None, Source] = {}
        pages, marker, more = _pages(self, queue, None, raw=True), None, True
        while more:
            page = yield from pages(marker)
            for letter in page.items:
                name = letter.dead_letter.source if letter.dead_letter else None
                sources.setdefault(name, Source(name)).add(letter)
            marker, more = page.marker, page.marker is not None
        return sorted(sources.values(), key=lambda source: source.queue or "")

    @method
    def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        source: str | None = None,
        where: Callable[[Message], bool] | str | Mapping[str, Any] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        ttl: int | None = None,
        delay: int | None = None,
        on_moved: Callable[[Message, str], None] | None = None,
        server: bool = True,
    ) -> Steps[Redriven]:
        """Move dead letters back; `RedriveOptions` explains the arguments.

        The server does it by a job, in which letters keep their ids, and this call waits for the
        job's end; an error or a cancellation meanwhile cancels the job. The client does it where
        the server has no such jobs, where `where` or `on_moved` is a function, and with
        `server=False`: each letter is claimed, posted with its id as the idempotency key, and
        deleted. Several such redrives may run at once, and one that was killed may be run again
        after a minute. A letter that is looked at and stays counts one claim more. Either way each
        letter is moved once, or left.

        Raises:
            Conflict: a job of the server's redrives this queue already.
            ZaqarError: the server refuses or is away; what was not moved is released.
        """
        options = arguments.options_of(RedriveOptions, locals())
        options.check(queue)
        if server and options.is_plain:
            done = yield from self._redrive_there(queue, options)
            if done is not None:
                return done
        elif isinstance(options.where, str | Mapping) and options.limit != 0:
            message = "only the server can filter by this `where`: without on_moved or server=False"
            raise ValueError(message)
        result: Redriven = yield ToTheEnd(
            lambda stopping: Redrive(self, queue, options, stopping=stopping).steps(),
            self.release_on_sigterm,
        )
        return result

    def _redrive_there(self, queue: str, options: RedriveOptions) -> Steps[Redriven | None]:
        """Have the server do it; None where it has no such jobs."""
        order = options.order()
        try:
            job = yield from self._exchange(jobs.begin(queue_path(queue, "redrives"), order))
        except Refused as error:
            if error.status in jobs.NO_SUCH_ROUTE and not isinstance(options.where, str | Mapping):
                return None
            raise
        return told((yield from jobs.finish(self, job)), dry_run=options.dry_run)


def _pages(client: BaseClient, queue: str, source: str | None, *, raw: bool) -> Pages[Message]:
    """Return the pages of a queue's dead letters, of one source or of all."""
    arguments.takes("source", source, str)
    selection = messages.Selection(include_claimed=True, details=True, raw=raw)
    pages = messages.message_pages(client, queue, selection)

    def page(marker: str | None) -> Steps[Page[Message]]:
        found = yield from pages(marker)
        letters = [
            one
            for one in found.items
            if source is None or (one.dead_letter and one.dead_letter.source == source)
        ]
        return Page(letters, found.marker)

    return page


def told(job: Job, *, dry_run: bool) -> Redriven:
    """Return what a job of the server did.

    Raises:
        ZaqarError: it failed.
    """
    if job.state == "failed":
        message = f"the server's job {job.id} failed: {job.error}"
        raise ZaqarError(message)
    stayed = dict(job.refused)
    return Redriven(
        dict(job.targets),
        job.examined - job.selected,
        stayed.pop("no_source", 0),
        held=stayed.pop("claimed", 0),
        stayed=stayed,
        dry_run=dry_run,
    )


@dataclasses.dataclass(slots=True)
class Kept:
    """A claim of this redrive; `left` is how many letters it holds."""

    id: str
    left: int
    renewed_at: float


class Redrive:
    """A redrive by the client: what moves where, and in which order the calls must be made.

    Args:
        client: asks for the calls.
        queue: the dead-letter queue.
        options: what to move.
        stopping: returns whether to end after the move that is under way.
        now: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        client: BaseClient,
        queue: str,
        options: RedriveOptions,
        *,
        stopping: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        options.check(queue)
        self._client = client
        self.queue = queue
        self._options = options
        self._stopping = stopping
        self._now = now
        self._kept: deque[Kept] = deque()
        self.result = Redriven(dry_run=options.dry_run)

    def _ask(self, call: Call[T]) -> Steps[T]:
        """Make a call; a warning does not end the redrive in its middle."""
        try:
            return (yield from self._client._exchange(call))
        except ServerWarning as warning:
            warnings.warn(warning, stacklevel=4)
            result: T = warning.result
            return result

    def steps(self) -> Steps[Redriven]:
        """Redrive.

        It ends after as many letters as were ready when it began: one that fails again meanwhile,
        and comes back, waits for the next run.
        """
        if self._options.dry_run:
            yield from self._count_only()
            return self.result
        stats = yield from self._ask(queues.stats(self.queue))
        looks = stats.free if stats.ready is None else stats.ready
        try:
            while looks > 0 and not self._stopping() and (limit := self._claim_limit()):
                options = claims.ClaimOptions(
                    limit=min(limit, looks), ttl=CLAIM_TTL, details=True, raw=True
                )
                asked_at = self._now()
                held = yield from self._ask(claims.claim(self.queue, options))
                if held is None:
                    break
                looks -= len(held.messages)
                kept = Kept(held.id, len(held.messages), asked_at)
                self._kept.append(kept)
                for target, letters in self._chosen(held.messages).items():
                    for batch in self._batches(letters):
                        yield from self._move(target, batch, kept)
                if not kept.left and self._kept and self._kept[-1] is kept:
                    self._kept.pop()
        finally:
            yield from self._release()
        stats = yield from self._ask(queues.stats(self.queue))
        self.result.held = stats.claimed
        return self.result

    def _count_only(self) -> Steps[None]:
        marker: str | None = None
        while self._left() != 0:
            page = yield from self._ask(
                messages.list_messages(
                    self.queue, COUNTED, marker=marker, limit=self._client.page_size
                )
            )
            for target, letters in self._chosen(page.messages).items():
                self._count(target, letters)
            marker = page.marker
            if marker is None:
                return

    def _claim_limit(self) -> int:
        """Return how many letters to claim next: no more than may move, if none is filtered."""
        left = self._left()
        filtered = self._options.source is not None or self._options.where is not None
        if left is None or (filtered and left):
            return self._client.page_size
        return min(left, self._client.page_size)

    def _left(self) -> int | None:
        """Return how many letters may still move, None for any number."""
        limit = self._options.limit
        return None if limit is None else max(0, limit - sum(self.result.moved.values()))

    def _chosen(self, page: Iterable[Message]) -> dict[str, list[Message]]:
        """Return the letters of a page that shall move, within the limit, by their targets."""
        chosen: dict[str, list[Message]] = {}
        wanted = ((letter, target) for letter in page if (target := self._target(letter)))
        for letter, target in islice(wanted, self._left()):
            chosen.setdefault(target, []).append(letter)
        return chosen

    def _target(self, letter: Message) -> str | None:
        source = letter.dead_letter.source if letter.dead_letter is not None else None
        if self._options.source not in {None, source} or not self._wanted(letter):
            self.result.passed_over += 1
            return None
        target = self._options.to or source
        if target is None or target == self.queue:
            self.result.without_source += 1
            return None
        return target

    def _wanted(self, letter: Message) -> bool:
        if not callable(self._options.where):
            return True
        body = letter.body
        if isinstance(body, RawBody):
            letter = dataclasses.replace(letter, body=serialization.loads(bytes(body)))
        return self._options.where(letter)

    def _batches(self, letters: Sequence[Message]) -> Iterator[Batch]:
        """Cut letters into parts that fit into one post each."""
        options, batcher = self._options, Batcher[NewMessage](PostOptions(batch_size=len(letters)))
        for letter in letters:
            new = NewMessage(
                body=letter.body,
                ttl=options.ttl,
                delay=options.delay,
                idempotency_key=letter.id,
                headers=letter.headers,
                group=letter.group,
            )
            if full := batcher.add(new):
                yield [(letters[entry.number], entry.encoded) for entry in full]
        yield [(letters[entry.number], entry.encoded) for entry in batcher.flush() or ()]

    def _move(self, target: str, batch: Batch, kept: Kept) -> Steps[None]:
        """Post letters and delete them; a single one that is refused stays where it is."""
        if not batch or self._stopping():
            return
        yield from self._renew()
        letters = [letter for letter, _ in batch]
        try:
            yield from self._ask(messages.post(target, [encoded for _, encoded in batch]))
        except BadRequest as error:
            if len(batch) == 1:  # too large for that queue, say
                self.result.refused[letters[0].id] = str(error)
                return
            for one in batch:
                yield from self._move(target, [one], kept)
            return
        ids = [letter.id for letter in letters]
        try:
            yield from self._ask(messages.delete_messages(self.queue, ids, claim_ids=[kept.id]))
        except ClaimLost:
            # Whoever claims them next finds them posted: a redrive recognises it by the key.
            self.result.lost += len(letters)
        else:
            kept.left -= len(letters)
            self._count(target, letters)

    def _count(self, target: str, letters: Sequence[Message]) -> None:
        """Count letters that have moved."""
        moved = self.result.moved
        moved[target] = moved.get(target, 0) + len(letters)
        if self._options.on_moved is not None:
            for letter in letters:
                self._options.on_moved(letter, target)

    def _renew(self) -> Steps[None]:
        """Renew the claims of which half the time is over; a lost one holds nothing.

        The oldest stands first, so that this costs nothing while none is due, however many are
        kept.
        """
        now = self._now()
        while self._kept and now - self._kept[0].renewed_at >= RENEW_AFTER:
            kept = self._kept.popleft()
            if not kept.left:
                continue
            kept.renewed_at = now
            self._kept.append(kept)
            try:
                yield from self._ask(claims.renew(self.queue, kept.id, ttl=CLAIM_TTL))
            except ClaimLost:
                kept.left = 0

    def _release(self) -> Steps[None]:
        for kept in self._kept:
            if kept.left:
                # They lapse by themselves in a minute; this error must not hide another.
                with contextlib.suppress(ZaqarError):
                    yield from self._ask(claims.release(self.queue, kept.id))
