"""What becomes of a message: its attempts, what lies beside it, its move to another queue.

A message's history is an object of its own. It is made when the first attempt has ended, and read
only where details are asked for. It is written before the state that it belongs to: an attempt
whose state was never written is not shown, and the next end of that hand-out replaces it.

A moved message is copied under both queues' locks with its id, then deleted from the source.

    1. the original is marked as leaving        readers of the source do not see it any more
    2. the copy is written as arriving          readers of the target do not see it yet
    3. the original is deleted
    4. the copy's mark is taken away

So a message is never visible in both queues. What a crash leaves is found by the sweep: a dead
letter that is leaving the source moves again, to a new position, any other leaving message stays
where it was, and the target shows an arriving one whose original is gone.

Whoever moves messages holds the source's lock and waits for the target's. A dead-letter queue has
no dead-letter queue itself, so two that send letters never wait for each other. A move that a
client asked for may go in either direction: it waits half a second, frees the source and begins
again.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from zaqar_lite.domain.attempts import MAX_CLAIMS, MOVED, Attempt, Ended, with_attempt
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import DeadLetter, Move, Origin
from zaqar_lite.domain.refusals import no_failed_list
from zaqar_lite.domain.settlements import PARKED_MARGIN_MS, Ending, HandOut
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import PATIENCE, SECOND, Lease
from zaqar_lite.storage.swift.objects import Objects, together

STEP = 10
"""Letters that are moved while the target's lock is held."""


def ended(state: State, ending: Ending, now: int) -> tuple[State, Attempt]:
    """The state of a message whose hand-out has ended, and the attempt that this was.

    It is ready, or parked, or a dead letter to be moved where `move_reason` is set.
    """
    began, client_id = state.claimed_at or ending.at, state.claim_client or None
    result = ending.apply(HandOut(state.claim_count, began, client_id, state.failure_count))
    until = result.ready_at
    after = replace(
        state,
        failure_count=result.failures,
        ended=ending.outcome.value,
        claim_expires_at=until if until > now else 0,
        move_reason=result.letter_reason or "",
    )
    least = until + PARKED_MARGIN_MS
    if until > now and after.expires_at < least:
        after = replace(after, ttl_ms=least - now, expires_at=least)
    return after, result.attempt


def load_attempts(told: Sequence[Sequence[Any]]) -> list[Attempt]:
    """Read attempts that were written as JSON."""
    return [Attempt._make([*each[:3], Ended(each[3]), *each[4:]]) for each in told]


def dump_attempts(attempts: Iterable[Attempt]) -> list[list[Any]]:
    """Attempts as they are written as JSON."""
    return [[*a[:3], a.outcome.value, *a[4:]] for a in attempts]


class Messages:
    """Write and remove messages, and what lies beside one: its history, and what finds it by id."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def attempts(self, container: str, message: Listed) -> tuple[Attempt, ...]:
        """The ended hand-outs of a message, oldest first."""
        state = message.state
        if not state.has_attempts:
            return ()
        reply = await self._objects.get(container, layout.attempts_name(message.name))
        attempts = load_attempts(json.loads(reply.body) if reply.found else ())
        last = state.claim_count if state.ended else state.claim_count - 1
        return tuple(attempt for attempt in attempts if attempt.number <= last)

    async def all_attempts(self, container: str, message: Fetched) -> tuple[Attempt, ...]:
        """The ended hand-outs of a message with those from before it was last redriven."""
        before = tuple(load_attempts(message.content.attempts))
        return reduce(with_attempt, await self.attempts(container, message), before)

    async def add_attempt(
        self, container: str, message: Listed, attempt: Attempt, ends: int, lease: Lease
    ) -> None:
        """Write the attempt that ends now into the history of a message that lives until `ends`."""
        attempts = with_attempt(await self.attempts(container, message), attempt)
        await self._put_attempts(container, message.name, attempts, ends, lease)

    async def copy_attempts(
        self, source: str, message: Listed, target: str, to: Listed, lease: Lease
    ) -> None:
        """Take a message's history with it to another queue."""
        attempts = await self.attempts(source, message)
        if attempts:
            await self._put_attempts(target, to.name, attempts, to.state.expires_at, lease)

    async def _put_attempts(
        self, container: str, name: str, attempts: tuple[Attempt, ...], ends: int, lease: Lease
    ) -> None:
        kind = layout.content_type("attempts", e=ends)
        body = json.dumps(dump_attempts(attempts)).encode()
        await self._objects.put(container, layout.attempts_name(name), kind, body, lease, ends=ends)

    async def put(self, container: str, message: Fetched, lease: Lease) -> None:
        """Write a new message, to be found by its id also where that tells another position."""
        steps = [self._objects.put_message(container, message, lease)]
        if message.was_moved:
            steps.append(self._index(container, message, message.state.expires_at, lease))
        await together(*steps)

    async def write(self, container: str, one: Listed, state: State, lease: Lease) -> bool:
        """Change the state of a message that was read as `one`; False when it is gone."""
        await self.keep(container, one, state, lease)
        return await self._objects.mark_message(container, one.name, state, lease)

    async def keep(self, container: str, one: Listed, state: State, lease: Lease) -> None:
        """Let what lies beside a message live as long as the message does in a new state."""
        ends = state.expires_at
        if ends <= one.state.expires_at:
            return
        if one.state.has_attempts:
            name, kind = layout.attempts_name(one.name), layout.content_type("attempts", e=ends)
            await self._objects.mark(container, name, kind, lease, ends=ends)
        if one.was_moved:
            await self._index(container, one, ends, lease)

    async def _index(self, container: str, one: Listed, ends: int, lease: Lease) -> None:
        """Let a moved message be found by its id, which does not tell its position any more."""
        kind = layout.content_type("index", at=f"{one.position:x}")
        await self._objects.put(container, layout.INDEX + one.id, kind, b"", lease, ends=ends)

    async def remove(self, container: str, one: Listed, lease: Lease) -> None:
        """Delete a message and what lies beside it."""
        await self._objects.remove(container, one.name, lease)
        await self.forget(container, one, lease)

    async def forget(self, container: str, one: Listed, lease: Lease) -> None:
        """Delete what lies beside a message that is gone; else it ends when the message would."""
        with suppress(Unavailable):
            if one.state.has_attempts:
                await self._objects.remove(container, layout.attempts_name(one.name), lease)
            if one.was_moved:
                await self._objects.remove(container, layout.INDEX + one.id, lease)


class _Route(NamedTuple):
    """From which container messages move to which one, with what ttl; `how` a client asked for it.

    The ttl counts from now; 0 keeps each one's own deadline.
    """

    source: str
    target: str
    ttl_ms: int
    how: Move | None = None


class DeadLetters:
    """Move exhausted messages, and finish the moves that a crash cut short."""

    def __init__(self, backend: Backend, messages: Messages) -> None:
        self._connection = backend
        self._objects = backend.objects
        self._messages = messages

    async def send(
        self, source: str, letters: Sequence[Fetched], policy: DeadLetter | None, lease: Lease
    ) -> int:
        """Move messages as a policy says, under the source's lock; answer how many."""
        if not letters or policy is None:
            return 0
        if policy.target is None:
            raise no_failed_list("Swift")
        target = self._connection.containers.queue(policy.target)
        return await self._move(_Route(source, target, policy.ttl_ms or 0), letters, lease)

    async def move(self, source: str, messages: Sequence[Fetched], how: Move, lease: Lease) -> None:
        """Move at most STEP messages that nobody holds as a client asked, or raise Busy."""
        marked = [replace(one, state=replace(one.state, move_reason=MOVED)) for one in messages]
        target = self._connection.containers.queue(how.target)
        await self._move(_Route(source, target, how.ttl_ms, how), marked, lease)

    async def _move(self, route: _Route, letters: Sequence[Fetched], lease: Lease) -> int:
        """Move messages between containers, under the source's lock; answer how many.

        The target's lock is freed between the steps, long enough for other processes to get it: a
        consumer of letters must not wait until all have moved. Showing the copies is the last write
        under it, so that a letter that is seen can be claimed.
        """
        tails, moved, (source, target, _, how) = self._connection.tails, 0, route
        known = tails.known(source).tail
        project = known.project if known is not None else ""
        for step in range(0, len(letters), STEP):
            few = letters[step : step + STEP]
            patience = PATIENCE if how is None else SECOND
            locks = self._connection.locks
            async with locks.hold(target, turn=0.0, patience=patience) as target_lease:
                both = Lease(min(lease.until, target_lease.until))
                tail = await tails.load(target, both)
                tail, positions = tails.advance(tail, len(few), project=project)
                async with tails.appending(target, tail, both):
                    copied = await self._copy_all(
                        route, list(zip(positions, few, strict=True)), both
                    )
                shown = await together(*(self._show(target, copy, both) for _, copy in copied))
            self._connection.hints.announce(target, shown)
            await together(*(self._messages.forget(source, letter, lease) for letter, _ in copied))
            moved += len(copied)
        return moved

    async def _copy_all(
        self, route: _Route, letters: Sequence[tuple[int, Fetched]], lease: Lease
    ) -> list[tuple[Listed, Listed]]:
        """Move messages to positions of the target, under both locks: originals and copies."""
        source, target, ttl_ms, _ = route
        marked = await together(
            *(
                self._objects.mark_message(
                    source,
                    letter.name,
                    replace(letter.state, leaving=target, move_position=at, move_ttl_ms=ttl_ms),
                    lease,
                )
                for at, letter in letters
            )
        )
        leaving = [
            (letter, await self._copy(route, letter, at))
            for (at, letter), was_marked in zip(letters, marked, strict=True)
            if was_marked  # else it was deleted meanwhile
        ]
        await together(
            *(self._messages.put(target, copy, lease) for _, copy in leaving),
            *(
                self._messages.copy_attempts(source, listed, target, copy, lease)
                for listed, copy in leaving
                if not (route.how and route.how.reset)
            ),
        )
        await together(*(self._objects.remove(source, one.name, lease) for one, _ in leaving))
        return [(letter, copy) for letter, copy in leaving]

    async def _copy(self, route: _Route, letter: Fetched, position: int) -> Fetched:
        """The message as it is to be in the target."""
        source, _, ttl_ms, how = route
        now = self._connection.clock.now_ms()
        state, content = letter.state, letter.content
        copied = replace(
            state,
            expires_at=now + ttl_ms if ttl_ms else state.expires_at,
            ttl_ms=ttl_ms or state.ttl_ms,
            claim_expires_at=0,
            leaving="",
            move_reason="",
            arriving=source,
            move_position=letter.position,
            move_ttl_ms=0,
        )
        origin = Origin(
            self._connection.containers.queue_name(source),
            now,
            state.claim_count,
            state.claim_id or None,
            state.claim_client or None,
            state.move_reason or MAX_CLAIMS,
            0 if content.origin is None else content.origin.redriven,
        )
        name, attempts = layout.message_name(position, letter.id), content.attempts
        if how is not None:
            origin = (content.origin or origin).put_back()
            copied = replace(copied, delay_expires_at=now + how.delay_ms if how.delay_ms else 0)
        if how is not None and how.reset:
            attempts = dump_attempts(await self._messages.all_attempts(source, letter))
            copied = replace(
                copied, claim_count=0, failure_count=0, claim_id="", claimed_at=0, ended=""
            )
        return Fetched(name, copied, content._replace(origin=origin, attempts=attempts))

    async def _show(self, target: str, copy: Listed, lease: Lease) -> State:
        shown = replace(copy.state, arriving="", move_position=0)
        await self._objects.mark_message(target, copy.name, shown, lease)
        return shown

    async def finish_moves(self, container: str, listed: Sequence[Listed], lease: Lease) -> int:
        """Finish moves from and to a queue, under its lock; answer how many messages moved."""
        self._connection.tails.known(container).something_may_be_ready()
        count = 0
        for one in listed:
            message = await self._objects.fetch(container, one.name)
            if message is None:
                continue  # the listing is late
            if message.state.leaving:
                count += await self._move_again(container, message, lease)
            elif message.state.arriving:
                original = layout.message_name(message.state.move_position, message.id)
                if not (await self._objects.head(message.state.arriving, original)).found:
                    # else whoever takes the source's lock moves it again
                    shown = await self._show(container, message, lease)
                    self._connection.hints.announce(container, [shown])
                    count += 1
        return count

    async def _move_again(self, source: str, message: Fetched, lease: Lease) -> int:
        """Move a leaving letter; let another message stay, whose client was told nothing.

        Its copy, if there is one, has not been shown to anybody.
        """
        state, name = message.state, message.name
        copy = layout.message_name(state.move_position, message.id)
        await self._messages.remove(state.leaving, Listed(copy, state), lease)
        if state.move_reason != MOVED:
            route = _Route(source, state.leaving, state.move_ttl_ms)
            return await self._move(route, [message], lease)
        stays = replace(state, leaving="", move_position=0, move_ttl_ms=0, move_reason="")
        await self._objects.mark_message(source, name, stays, lease)
        return 0
