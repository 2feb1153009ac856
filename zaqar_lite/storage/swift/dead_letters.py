"""Moving messages: copied under both queues' locks with their id, then deleted from the source.

    1. the original is marked as leaving        readers of the source do not see it any more
    2. the copy is written as arriving          readers of the target do not see it yet
    3. the original is deleted
    4. the copy's mark is taken away

So a message is never visible in both queues. What a crash leaves is found later: the next claim or
sweep of the source moves a leaving message again, to a new position, and the next claim or sweep of
the target shows an arriving one whose original is gone.

An operation that sends dead letters holds the source's lock and waits for the target's. A
dead-letter queue has no dead-letter queue itself, so two of them never wait for each other. A move
that a client asked for may go in either direction: it takes both locks by `Locks.hold_both`, which
frees one while it waits for the other. Only the sweep finishes such a move.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

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
_RESETS, _KEEPS = "r", "k"
"""The first letter of `State.move_back`: are the counts reset, or kept? The delay in ms follows."""


class DeadLetters:
    """Move exhausted messages, and finish the moves that a crash cut short."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
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
        target = self._backend.containers.queue(policy.target)
        return await self._move(source, target, letters, policy.ttl_ms or 0, lease)

    async def move(self, source: str, messages: Sequence[Fetched], how: Move, lease: Lease) -> None:
        """Move messages that nobody holds as a client asked, under both queues' locks."""
        back = f"{_RESETS if how.reset else _KEEPS}{how.delay_ms}"
        marked = [one.with_state(replace(one.state, move_back=back)) for one in messages]
        target = self._backend.containers.queue(how.target)
        await self._move(source, target, marked, how.ttl_ms, lease, has_both=True)

    async def _move(
        self,
        source: str,
        target: str,
        letters: Sequence[Fetched],
        ttl_ms: int,
        lease: Lease,
        *,
        has_both: bool = False,
    ) -> int:
        """Move messages between containers, under the source's lock; answer how many.

        `ttl_ms` counts from now; 0 keeps each one's own deadline. The target's lock is taken here,
        unless the caller `has_both`. It is freed between the steps, long enough for other processes
        to get it: a consumer of letters must not wait until all have moved. Showing the copies is
        the last write under it, so that a letter that is seen can be claimed.
        """
        tails, moved = self._backend.tails, 0
        known = tails.known(source).tail
        project = known.project if known is not None else ""
        for step in range(0, len(letters), _STEP):
            few = letters[step : step + _STEP]
            holding = self._backend.locks.hold(target, turn=0.0)
            async with nullcontext(lease) if has_both else holding as target_lease:
                both = Lease(min(lease.until, target_lease.until))
                tail = await tails.load(target, both)
                bound = tail.bound and tail.bound + len(few)
                tail = replace(tail, bound=bound, project=tail.project or project)
                positions = tails.next_positions(tail, len(few))
                async with tails.appending(target, tail, positions, both):
                    placed = list(zip(positions, few, strict=True))
                    copied = await self._copy_all(source, target, placed, ttl_ms, both)
                await together(*(self._show(target, copy, both) for _, copy in copied))
            self._backend.hints.announce_ready(target, len(copied))
            await together(*(self._forget(source, letter, lease) for letter, _ in copied))
            moved += len(copied)
        return moved

    async def _copy_all(
        self,
        source: str,
        target: str,
        letters: Sequence[tuple[int, Fetched]],
        ttl_ms: int,
        lease: Lease,
    ) -> list[tuple[Listed, Listed]]:
        """Move messages to positions of the target, under both locks: originals and copies."""
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
            (letter.listed, await self._copy(source, letter, at, ttl_ms))
            for (at, letter), was_marked in zip(letters, marked, strict=True)
            if was_marked  # else it was deleted meanwhile
        ]
        await together(
            *(self.index(target, copy.listed, lease) for _, copy in leaving),
            *(self._objects.put_message(target, copy, lease) for _, copy in leaving),
            *(
                self.histories.copy(source, listed, target, copy.listed, lease)
                for listed, copy in leaving
                if not listed.state.move_back.startswith(_RESETS)
            ),
        )
        await together(*(self._objects.remove(source, one.name, lease) for one, _ in leaving))
        return [(letter, copy.listed) for letter, copy in leaving]

    async def _copy(self, source: str, letter: Fetched, position: int, ttl_ms: int) -> Fetched:
        """The message as it is to be in the target."""
        now = self._backend.clock.now_ms()
        state, content = letter.state, letter.content
        copied = replace(
            state,
            expires_at=now + ttl_ms if ttl_ms else state.expires_at,
            ttl_ms=ttl_ms or state.ttl_ms,
            claim_expires_at=0,
            leaving="",
            move_reason="",
            move_back="",
            arriving=source,
            move_position=letter.listed.position,
            move_ttl_ms=0,
        )
        origin = Origin(
            self._backend.containers.queue_name(source),
            now,
            state.claim_count,
            state.claim_id or None,
            state.claim_client or None,
            MOVED if state.move_back else state.move_reason or MAX_CLAIMS,
            0 if content.origin is None else content.origin.redriven,
        )
        name, attempts = layout.message_name(position, letter.listed.id), content.attempts
        if state.move_back:
            origin = (content.origin or origin).put_back()
            delay_ms = int(state.move_back[1:])
            copied = replace(copied, delay_expires_at=now + delay_ms if delay_ms else 0)
        if state.move_back.startswith(_RESETS):
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

    async def finish_moves(
        self,
        container: str,
        listed: Sequence[Listed],
        lease: Lease,
        *,
        target: str = "",
    ) -> int:
        """Finish moves from and to a queue, under its lock; answer how many were left open.

        With a `target`, whose lock is held too, only the moves to it; without one, none of those
        that a client asked for.
        """
        self._backend.tails.known(container).something_may_be_ready()
        count = 0
        for one in listed:
            message = await self._objects.fetch(container, one.name)
            if message is None:
                continue  # the listing is late
            if message.state.leaving:
                going = message.state.leaving == target if target else not message.state.move_back
                if going:
                    count += await self._move_again(container, message, lease, bool(target))
            elif message.state.arriving:
                count += await self._arrive(container, message.listed, lease)
        return count

    async def _move_again(self, source: str, letter: Fetched, lease: Lease, has_both: bool) -> int:
        """Move a leaving message: its copy, if there is one, has not been shown to anybody."""
        state = letter.state
        copy = layout.message_name(state.move_position, letter.listed.id)
        await self._objects.remove(state.leaving, copy, lease)
        ttl_ms = state.move_ttl_ms
        return await self._move(source, state.leaving, [letter], ttl_ms, lease, has_both=has_both)

    async def _arrive(self, target: str, copy: Listed, lease: Lease) -> int:
        original = layout.message_name(copy.state.move_position, copy.id)
        if (await self._objects.head(copy.state.arriving, original)).found:
            return 0  # whoever takes the source's lock moves it again
        await self._show(target, copy, lease)
        self._backend.hints.announce_ready(target, 1)
        return 1
