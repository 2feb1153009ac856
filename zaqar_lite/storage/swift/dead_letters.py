"""Moving messages: copied under both queues' locks with their id, then deleted from the source.

    1. the original is marked as leaving        readers of the source do not see it any more
    2. the copy is written as arriving          readers of the target do not see it yet
    3. the original is deleted
    4. the copy's mark is taken away

So a message is never visible in both queues. What a crash leaves is found by the sweep: a dead
letter that is leaving the source moves again, to a new position, any other leaving message stays
where it was, and the target shows an arriving one whose original is gone.

An operation that sends dead letters holds the source's lock and waits for the target's. A
dead-letter queue has no dead-letter queue itself, so two of them never wait for each other. A move
that a client asked for may go in either direction: it takes both locks by `Locks.hold_both`, which
frees one while it waits for the other.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import NamedTuple

from zaqar_lite.domain.attempts import MAX_CLAIMS, MOVED
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import DeadLetter, Move, Origin
from zaqar_lite.domain.refusals import no_failed_list
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.ending import Histories, dump_attempts
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together

_STEP = 10
"""Letters that are moved while the target's lock is held."""


class _Route(NamedTuple):
    """From which container messages move to which one, with what ttl; `how` a client asked for it.

    The ttl counts from now; 0 keeps each one's own deadline.
    """

    source: str
    target: str
    ttl_ms: int
    how: Move | None = None

    @property
    def resets(self) -> bool:
        """Whether the messages' counts begin anew."""
        return self.how is not None and self.how.reset


class DeadLetters:
    """Move exhausted messages, and finish the moves that a crash cut short."""

    def __init__(self, backend: Backend) -> None:
        self._connection = backend
        self._objects = backend.objects
        self.histories = Histories(backend.objects)

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
        """Move messages that nobody holds as a client asked, under both queues' locks."""
        marked = [one.with_state(replace(one.state, move_reason=MOVED)) for one in messages]
        target = self._connection.containers.queue(how.target)
        await self._move(_Route(source, target, how.ttl_ms, how), marked, lease)

    async def _move(self, route: _Route, letters: Sequence[Fetched], lease: Lease) -> int:
        """Move messages between containers, under the source's lock; answer how many.

        The target's lock is taken here, unless a client asked for the move: then the caller holds
        both. It is freed between the steps, long enough for other processes to get it: a consumer
        of letters must not wait until all have moved. Showing the copies is the last write under
        it, so that a letter that is seen can be claimed.
        """
        tails, moved, (source, target, _, how) = self._connection.tails, 0, route
        known = tails.known(source).tail
        project = known.project if known is not None else ""
        for step in range(0, len(letters), _STEP):
            few = letters[step : step + _STEP]
            holding = self._connection.locks.hold(target, turn=0.0)
            async with holding if how is None else nullcontext(lease) as target_lease:
                both = Lease(min(lease.until, target_lease.until))
                tail = await tails.load(target, both)
                bound = tail.bound and tail.bound + len(few)
                tail = replace(tail, bound=bound, project=tail.project or project)
                positions = tails.next_positions(tail, len(few))
                async with tails.appending(target, tail, positions, both):
                    copied = await self._copy_all(
                        route, list(zip(positions, few, strict=True)), both
                    )
                await together(*(self._show(target, copy, both) for _, copy in copied))
            self._connection.hints.announce_ready(target, len(copied))
            await together(*(self._forget(source, letter, lease) for letter, _ in copied))
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
                    letter.listed.name,
                    replace(letter.state, leaving=target, move_position=at, move_ttl_ms=ttl_ms),
                    lease,
                )
                for at, letter in letters
            )
        )
        leaving = [
            (letter.listed, await self._copy(route, letter, at))
            for (at, letter), was_marked in zip(letters, marked, strict=True)
            if was_marked  # else it was deleted meanwhile
        ]
        await together(
            *(self.index(target, copy.listed, lease) for _, copy in leaving),
            *(self._objects.put_message(target, copy, lease) for _, copy in leaving),
            *(
                self.histories.copy(source, listed, target, copy.listed, lease)
                for listed, copy in leaving
                if not route.resets
            ),
        )
        await together(*(self._objects.remove(source, one.name, lease) for one, _ in leaving))
        return [(letter, copy.listed) for letter, copy in leaving]

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
            move_position=letter.listed.position,
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
        name, attempts = layout.message_name(position, letter.listed.id), content.attempts
        if how is not None:
            origin = (content.origin or origin).put_back()
            copied = replace(copied, delay_expires_at=now + how.delay_ms if how.delay_ms else 0)
        if route.resets:
            attempts = dump_attempts(await self.histories.read_all(source, letter))
            copied = replace(
                copied, claim_count=0, failure_count=0, claim_id="", claimed_at=0, ended=""
            )
        return Fetched(Listed(name, copied), content._replace(origin=origin, attempts=attempts))

    async def index(self, target: str, copy: Listed, lease: Lease) -> None:
        """Let the message be found by its id, which does not tell its position any more."""
        kind = layout.content_type("index", at=f"{copy.position:x}")
        ends = copy.state.expires_at
        await self._objects.put(target, layout.INDEX + copy.id, kind, b"", lease, ends=ends)

    async def keep_index(self, container: str, one: Listed, state: State, lease: Lease) -> None:
        """Let a moved message be found by its id as long as it lives in a new state."""
        if one.was_moved and state.expires_at > one.state.expires_at:
            await self.index(container, Listed(one.name, state), lease)

    async def remove(self, container: str, listed: Listed, lease: Lease) -> None:
        """Delete a message, its history, and what finds it by its id where it was moved here."""
        await self._objects.remove(container, listed.name, lease)
        await self._forget(container, listed, lease)

    async def _forget(self, container: str, listed: Listed, lease: Lease) -> None:
        with suppress(Unavailable):  # what it would find is gone
            await self.histories.remove(container, listed, lease)
            if listed.was_moved:
                await self._objects.remove(container, layout.INDEX + listed.id, lease)

    async def _show(self, target: str, copy: Listed, lease: Lease) -> None:
        shown = replace(copy.state, arriving="", move_position=0)
        await self._objects.mark_message(target, copy.name, shown, lease)

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
                count += await self._arrive(container, message.listed, lease)
        return count

    async def _move_again(self, source: str, message: Fetched, lease: Lease) -> int:
        """Move a leaving letter; let another message stay, whose client was told nothing.

        Its copy, if there is one, has not been shown to anybody.
        """
        state, name = message.state, message.listed.name
        copy = layout.message_name(state.move_position, message.listed.id)
        await self.remove(state.leaving, Listed(copy, state), lease)
        if state.move_reason != MOVED:
            route = _Route(source, state.leaving, state.move_ttl_ms)
            return await self._move(route, [message], lease)
        stays = replace(state, leaving="", move_position=0, move_ttl_ms=0, move_reason="")
        await self._objects.mark_message(source, name, stays, lease)
        return 0

    async def _arrive(self, target: str, copy: Listed, lease: Lease) -> int:
        original = layout.message_name(copy.state.move_position, copy.id)
        if (await self._objects.head(copy.state.arriving, original)).found:
            return 0  # whoever takes the source's lock moves it again
        await self._show(target, copy, lease)
        self._connection.hints.announce_ready(target, 1)
        return 1
