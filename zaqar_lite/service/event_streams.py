"""Event streams: each message of a queue once, as soon as it is visible.

A message is visible after it was posted and its delay is over. It is shown whether or not a worker
has claimed it: which of the two comes first is a race, and who watches a queue wants to see it.

A stream reads the queue by position, like a list, and claims nothing. On a delayed queue it skips
messages that are not due yet, which are then pending, and looks at them again when one may be due.
The position of a stream is a `Cursor`, sent as the id of each event, so that another stream can
continue there. While nothing is pending, the cursor is a list's marker.
"""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.ids import Marker, format_marker, parse_marker
from zaqar_lite.domain.models import ListQuery, Message, Page, QueueRef
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.long_polling import LongPolling, Waiter
from zaqar_lite.service.policy import Policies, Policy
from zaqar_lite.storage.base import MessageStore

PAGE = 20
"""How many messages one step of a stream reads."""
HEARTBEAT = 15.0
"""Seconds without events after which a stream sends a comment to keep the connection."""
LONGEST = 3_600
"""Seconds after which a stream ends; its client reconnects, and is authenticated again."""
_INSTANT = 0.002
"""Seconds after which an instant, in milliseconds, is over."""
_SPARED = 20
"""The rest after a look at the pending messages, as a multiple of how long the look took."""
_CURSOR = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{1,16})")


class Cursor(NamedTuple):
    """How far a stream has read.

    The stream has looked at all messages up to the position `passed`. Of those after the position
    `pending` it has sent only the ones that were due at `due` (milliseconds, the store's clock).
    If `pending` equals `passed`, it has sent all.
    """

    passed: int = 0
    pending: int = 0
    due: int = 0

    def __str__(self) -> str:
        if self.pending >= self.passed:
            return format_marker(self.passed)
        return f"{self.passed:016x}-{self.pending:016x}-{self.due:x}"


class Event(NamedTuple):
    """A message to send, and the event's id; None repeats the last id."""

    message: Message
    cursor: Cursor | None


def parse_cursor(text: str) -> tuple[Cursor, str | None]:
    """Parse an event's id, a list's marker or a message's id, which is returned if it is one.

    Raises:
        Invalid: the text is none of them.
    """
    found = _CURSOR.fullmatch(text)
    if found is not None:
        passed, pending, due = (int(digits, 16) for digits in found.groups())
        if pending < passed < 1 << 63 and due < 1 << 63:
            return Cursor(passed, pending, due), None
    marker = parse_marker(text)
    if marker is None:
        raise Invalid(
            "The marker (Last-Event-ID) must be the id of an event, a list's marker or a "
            "message's id."
        )
    return Cursor(marker.position, marker.position), marker.message_id


class _Look(NamedTuple):
    """How far a look at the pending messages has read."""

    position: int
    due: int
    """The instant at which a message must be due to be sent; 0 before the first page."""
    pending: int
    spent: float = 0.0
    has_found: bool = False
    is_due_now: bool = False


@dataclass(eq=False, repr=False)
class Stream:
    """A client's reading of a queue; its holder must call `leave` at the end.

    `cursor` is the position that it has reached.
    """

    messages: MessageStore
    policies: Policies
    queue: QueueRef
    waiter: Waiter
    cursor: Cursor
    message_id: str | None
    exclude_client_id: str | None
    include_delayed: bool
    _look: _Look | None = None
    _not_before: float = 0.0
    _owes: bool = False

    async def leave(self) -> None:
        """End the stream's waiting."""
        await self.waiter.leave()

    def rest(self, seconds: float) -> Coroutine[Any, Any, bool]:
        """Wait up to `seconds`; return whether there may be something new.

        A pending message that becomes due may end the wait early.
        """
        if self._owes:
            seconds = min(seconds, max(self._not_before - _now(), 0.0))
        return self.waiter.sleep(seconds)

    async def look(self) -> Sequence[Event] | None:
        """Look for events; None if nothing was found and the cursor has not moved.

        Raises:
            Unavailable: the store does not answer.
        """
        self.waiter.ask()
        if self._look is None and self.cursor.pending < self.cursor.passed:
            self._owes = _now() < self._not_before
            if not self._owes:
                self._look = _Look(self.cursor.pending, 0, self.cursor.passed)
        while self._look is not None:
            events = await self._late(self._look)
            if events is not None:
                return events
        page, honour = await self._page(self.cursor.passed, None)
        if page.marker is None:
            return None
        events = self._pass(page, page.marker, honour=honour)
        if not events:  # all of them are delayed, and there may be many more
            await next_turn()
        return events

    async def _page(self, after: int, until: int | None) -> tuple[Page, bool]:
        """Read a page, with delayed and claimed messages; return also whether delays count."""

        async def act(policy: Policy) -> tuple[Page, bool]:
            selection = ListQuery(
                limit=PAGE,
                marker=Marker(after, self.message_id),
                until=None if until is None else Marker(until),
                exclude_client_id=self.exclude_client_id,
                include_claimed=True,
                include_delayed=True,
                version=policy.version,
            )
            page = await self.messages.list_messages(self.queue, selection)
            return page, policy.is_delayed and not self.include_delayed

        return await self.policies.decide(self.queue, act)

    def _pass(self, page: Page, marker: int, *, honour: bool) -> Sequence[Event]:
        """Move the cursor past the messages of a page; return events for the visible ones."""
        _, pending, due = self.cursor
        waits = pending < self.cursor.passed
        if page.messages and not waits:
            due = page.messages[0].now - 1
        events = []
        for message in page.messages:
            at = message.position
            if not (honour and _is_delayed(message, due)):
                events.append(Event(message, Cursor(at, pending if waits else at, due)))
            elif not waits:
                waits, pending = True, at - 1
        self.message_id = None
        self.cursor = Cursor(marker, pending if waits else marker, due)
        return events

    async def _late(self, look: _Look) -> Sequence[Event] | None:
        """Look at a page of the pending messages; return events for those that became visible.

        The cursor moves only at the end of the look, so a stream that is cut before then sends
        these events again.
        """
        await next_turn()
        begun, passed = _now(), self.cursor.passed
        page, honour = await self._page(look.position, passed)
        due, pending, events = look.due, look.pending, []
        is_due_now = look.is_due_now
        for message in page.messages:
            due = due or max(self.cursor.due, message.now - 1)
            if honour and _is_delayed(message, due):
                pending = min(pending, message.position - 1)
                is_due_now = is_due_now or not _is_delayed(message, message.now)
            elif _is_delayed(message, self.cursor.due):
                events.append(Event(message, None))
        # The next look begins at the first message that is pending now.
        spent = 0.0 if pending == passed else look.spent + _now() - begun
        has_found = look.has_found or bool(events)
        if page.marker is not None and page.marker < passed:
            self._look = _Look(page.marker, due, pending, spent, has_found, is_due_now)
            return events or None
        self._look = None
        self._not_before = _now() + _SPARED * spent
        if is_due_now:  # in this very millisecond: nobody will tell of it again
            self._owes, self._not_before = True, max(self._not_before, _now() + _INSTANT)
        self.cursor = Cursor(passed, pending, due or self.cursor.due)
        if events:
            events[-1] = Event(events[-1].message, self.cursor)
        return events if has_found else None


@dataclass(eq=False, repr=False)
class EventStreams:
    """Opens streams, which count as waiting requests and share their bounds."""

    messages: MessageStore
    policies: Policies
    long_polling: LongPolling

    async def open(
        self,
        queue: QueueRef,
        *,
        marker: str | None,
        from_now: bool,
        exclude_client_id: str | None,
        include_delayed: bool,
        gone: asyncio.Future[None],
    ) -> Stream:
        """Open a stream: after `marker`, or from now on, or from the first message.

        Raises:
            Invalid: the marker can't be read.
            TooMany, QuotaReached: too many streams and requests wait already.
        """
        cursor, message_id = Cursor(), None
        if marker is not None:
            cursor, message_id = parse_cursor(marker)
        elif from_now:
            cursor = await self._now(queue, include_delayed=include_delayed)
        return Stream(
            self.messages,
            self.policies,
            queue,
            await self.long_polling.join(queue, gone),
            cursor=cursor,
            message_id=message_id,
            exclude_client_id=exclude_client_id,
            include_delayed=include_delayed,
        )

    async def _now(self, queue: QueueRef, *, include_delayed: bool) -> Cursor:
        """The cursor of a stream that begins after everything that is visible now.

        Delayed messages are pending, however old: an edit can delay one again and again.
        """
        stats = await self.messages.stats(queue)
        oldest, newest = stats.oldest, stats.newest
        if oldest is None or newest is None:
            return Cursor()
        at, now = newest.position, newest.now
        if include_delayed or not stats.delayed:
            return Cursor(at, at, now)
        return Cursor(at, min(oldest.position - 1, at), now)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_delayed(message: Message, due: int) -> bool:
    return message.delay_expires_at is not None and message.delay_expires_at > due
