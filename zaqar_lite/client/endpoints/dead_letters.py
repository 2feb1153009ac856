"""Dead letters: list them, count them by source, and move them back.

A job of the server moves them: by a filter of its own, or by the ids that a function of the caller
has chosen, a hundred at once. A letter moves in one step of the store, so that it is in one of the
two queues whenever a redrive is killed, and two redrives never move it twice.
"""

import contextlib
import dataclasses
import datetime as dt
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from zaqar_lite.client import arguments, serialization
from zaqar_lite.client.base_client import BaseClient, chunks
from zaqar_lite.client.endpoints import claims, jobs, messages, queues
from zaqar_lite.client.endpoints.requests import queue_path
from zaqar_lite.client.errors import BadRequest, ClaimLost, Refused, ServerWarning, ZaqarError
from zaqar_lite.client.models import Job, Message, NewMessage, RawBody
from zaqar_lite.client.steps import Page, Pages, Steps, listing, method

AT_ONCE = 100
"""Letters that the server moves before it answers; for more it makes a job to be waited for."""
CLAIM_TTL = 300
"""Seconds that letters stay claimed where a redrive without jobs was killed."""


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
    `held` are letters that somebody else has claimed (on a server without jobs also a redrive that
    was killed less than five minutes ago): run the redrive again for those. `lost` are letters that
    were posted, but whose claim lapsed before they were deleted: run it again while the server
    remembers keys (600 s by default), and the target has them once.
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
        """Whether the server can choose the letters: no option is a function of the caller."""
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
        if isinstance(self.where, str | Mapping) and self.on_moved is not None:
            message = "on_moved goes with a function as `where`: the server can't tell each letter"
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
    ) -> Steps[Redriven]:
        """Move dead letters back; `RedriveOptions` explains the arguments.

        The server does it by a job, in which letters keep their ids, and this call waits for the
        job's end; an error or a cancellation meanwhile cancels the job. Where `where` or `on_moved`
        is a function the client lists the letters, and the server moves those that it has chosen.
        Each letter is moved once, or left. A server without such jobs, as OpenStack's Zaqar, has
        letters claimed, posted with their ids as idempotency keys, and deleted: each is moved at
        least once, and once while the server remembers the key.

        Raises:
            Conflict: a job of the server's redrives this queue already.
            ZaqarError: the server refuses or is away.
        """
        options = arguments.options_of(RedriveOptions, locals())
        options.check(queue)
        redrive = Redrive(self, queue, options)
        try:
            if options.is_plain:
                return (yield from redrive.by_filter())
            return (yield from redrive.by_ids())
        except Refused as error:
            without_jobs = not redrive.has_begun and error.status in jobs.NO_SUCH_ROUTE
            if not without_jobs or isinstance(options.where, str | Mapping):
                raise
        redrive = Redrive(self, queue, options)
        return (yield from redrive.by_ids() if options.dry_run else redrive.by_claims())


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


class Redrive:
    """What moves where, and in which order the calls are made."""

    def __init__(self, client: BaseClient, queue: str, options: RedriveOptions) -> None:
        self._client = client
        self._queue = queue
        self._options = options
        self._result = Redriven(dry_run=options.dry_run)
        self.has_begun = False
        """Whether the server has taken a job."""

    def by_filter(self) -> Steps[Redriven]:
        """Have the server choose the letters."""
        job = yield from self._begin(self._options.order())
        self._result.moved = dict(job.targets)
        self._result.passed_over = job.examined - job.selected
        return self._result

    def by_ids(self) -> Steps[Redriven]:
        """Choose the letters here, as many as are there now, and have them moved."""
        looks = (yield from self._client._exchange(queues.stats(self._queue))).total
        pages = _pages(self._client, self._queue, None, raw=False)
        marker: str | None = None
        while looks > 0 and self._left() != 0:
            page = yield from pages(marker)
            letters = page.items[:looks]
            looks -= len(letters)
            for target, chosen in self._chosen(letters).items():
                yield from self._move(target, chosen)
            if (marker := page.marker) is None:
                break
        return self._result

    def _move(self, target: str, letters: Sequence[Message]) -> Steps[None]:
        """Move letters to one target; who is told of each has each moved by itself."""
        options = self._options
        if options.dry_run:
            self._count(target, letters, len(letters))
            return
        for part in chunks(letters, 1 if options.on_moved else AT_ONCE):
            ids = [letter.id for letter in part]
            order = {"ids": ids, "to": target, "ttl": options.ttl, "delay": options.delay}
            job = yield from self._begin(order)
            if job.done:
                self._count(target, part, job.done)

    def _begin(self, order: Mapping[str, Any]) -> Steps[Job]:
        """Begin a job and wait for its end; count what it left.

        Raises:
            ZaqarError: it failed.
        """
        path = queue_path(self._queue, "redrives")
        job = yield from self._client._exchange(jobs.begin(path, order))
        self.has_begun = True
        job = yield from jobs.finish(self._client, job)
        if job.state == "failed":
            message = f"the server's job {job.id} failed: {job.error}"
            raise ZaqarError(message)
        stayed = dict(job.refused)
        self._result.without_source += stayed.pop("no_source", 0)
        self._result.held += stayed.pop("claimed", 0)
        for reason, count in stayed.items():
            self._result.stayed[reason] = self._result.stayed.get(reason, 0) + count
        return job

    def by_claims(self) -> Steps[Redriven]:
        """Claim letters, as many as are ready now, post each, and delete it with its claim.

        What stays is held until the end, so that it is not claimed again.
        """
        stats = yield from self._client._exchange(queues.stats(self._queue))
        looks, held_claims = stats.claimable, list[str]()
        try:
            while looks > 0 and self._left() != 0:
                limit = min(looks, self._client.page_size)
                how = claims.ClaimOptions(limit=limit, ttl=CLAIM_TTL, details=True, raw=True)
                held = yield from self._client._exchange(claims.claim(self._queue, how))
                if held is None:
                    break
                looks -= len(held.messages)
                held_claims.append(held.id)
                for target, letters in self._chosen(held.messages).items():
                    for letter in letters:
                        yield from self._post(target, letter, held.id)
        finally:
            for claim_id in held_claims:
                with contextlib.suppress(ZaqarError):  # this error must not hide another
                    yield from self._client._exchange(claims.release(self._queue, claim_id))
        stats = yield from self._client._exchange(queues.stats(self._queue))
        self._result.held = stats.claimed
        return self._result

    def _post(self, target: str, letter: Message, claim_id: str) -> Steps[None]:
        """Post a letter and delete it; one that is refused stays where it is."""
        options = self._options
        new = NewMessage(
            body=letter.body,
            ttl=options.ttl,
            delay=options.delay,
            idempotency_key=letter.id,
            headers=letter.headers,
            group=letter.group,
        )
        try:
            encoded = [serialization.encode_message(new)]
            yield from self._client._exchange(messages.post(target, encoded))
        except ServerWarning as warning:  # it is stored
            warnings.warn(warning, stacklevel=4)
        except BadRequest as error:  # too large for that queue, say
            self._result.refused[letter.id] = str(error)
            return
        call = messages.delete_messages(self._queue, [letter.id], claim_ids=[claim_id])
        try:
            yield from self._client._exchange(call)
        except ClaimLost:
            self._result.lost += 1
        else:
            self._count(target, [letter], 1)

    def _left(self) -> int | None:
        """Return how many letters may still move, None for any number."""
        limit = self._options.limit
        return None if limit is None else max(0, limit - sum(self._result.moved.values()))

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
            self._result.passed_over += 1
            return None
        target = self._options.to or source
        if target is None or target == self._queue:
            self._result.without_source += 1
            return None
        return target

    def _wanted(self, letter: Message) -> bool:
        if not callable(self._options.where):
            return True
        body = letter.body
        if isinstance(body, RawBody):
            letter = dataclasses.replace(letter, body=serialization.loads(bytes(body)))
        return self._options.where(letter)

    def _count(self, target: str, letters: Sequence[Message], moved: int) -> None:
        """Count letters that have moved, and tell of them."""
        self._result.moved[target] = self._result.moved.get(target, 0) + moved
        if self._options.on_moved is not None:
            for letter in letters:
                self._options.on_moved(letter, target)
