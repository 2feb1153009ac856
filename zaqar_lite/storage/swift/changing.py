"""Changes by id and of whole queues: edit, delete, move, expose, purge."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Edit, Message, Move, QueueRef, Refusal, RefusalReason
from zaqar_lite.domain.refusals import Deadlines, delete_refusal, edited, no_message
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.claiming import Claiming
from zaqar_lite.storage.swift.layout import Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import NEVER

_STEP = 100
"""Delayed messages that are made ready before the lock is freed for a moment."""
_MOVED = 10
"""Messages that are moved before the locks are freed for a moment."""


class Changing(Claiming):
    """Edit, delete, move and expose messages; purge queues."""

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        container = self._container(queue)
        message_id = edit.message_id

        async def work(lease: Lease) -> Message:
            tail = await self._tails.load(container, lease)
            await self._connection.check(queue, edit.version, tail)
            known = is_message_id(message_id)
            message = await self._fetch(container, message_id) if known else None
            now = self._now()
            if message is None or not message.listed.exists(tail.birth, now):
                raise no_message(message_id)
            state = _edited(message.state, edit, now)
            edited = message.with_state(state)
            with self._hints.changing(container):
                await self._keep(container, message.listed, state, lease)
                if edit.body is not None:
                    edited = edited.with_state(replace(state, size=len(edit.body)))
                    edited = edited._replace(content=edited.content._replace(body=edit.body))
                    await self._objects.put_message(container, edited, lease)
                elif not await self._objects.mark_message(
                    container, edited.listed.name, state, lease
                ):
                    raise no_message(message_id)
            self._announce_returned(container, 1, state.delay_expires_at)
            return edited.view(now)

        return await self._connection.locked(queue, work)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam.

        It needs no lock where live claims hold all of them for longer than a request can take:
        nobody else gets those meanwhile. Acknowledging is what consumers do most.
        """
        known = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        if not known:
            return ()
        container = self._container(queue)
        self._tails.known(container).room = None
        longest = self._connection.longest_call
        if claim_ids:
            until = time.monotonic() + longest - self._connection.swift.fence.lasts
            found = await self._find_live(container, known, await self._tails.peek(container))
            refused = self._refused(found, claim_ids)
            late = self._now() + int(longest * 1000)
            if refused or all(one.state.is_claimed(late) for one in found):
                return refused or await self._remove(container, found, claim_ids, Lease(until))

        async def work(lease: Lease) -> Sequence[Refusal]:
            tail = await self._tails.load(container, lease)
            if claim_ids is None:
                await together(*(self._remove_unchecked(container, i, lease) for i in known))
                return ()
            found = await self._find_live(container, known, tail)
            refused = self._refused(found, claim_ids)
            return refused or await self._remove(container, found, claim_ids, lease)

        return await self._connection.locked(queue, work)

    def _refused(self, found: Sequence[Listed], claim_ids: Collection[str]) -> list[Refusal]:
        now = self._now()
        return [
            Refusal(one.id, reason)
            for one in found
            if (reason := _refusal(one.state, claim_ids, now)) is not None
        ]

    async def _remove(
        self, container: str, found: Sequence[Listed], claim_ids: Collection[str], lease: Lease
    ) -> Sequence[Refusal]:
        await together(*(self._dead_letters.remove(container, one, lease) for one in found))
        await self._end_empty(container, claim_ids, found, lease)
        return ()

    async def _remove_unchecked(self, container: str, message_id: str, lease: Lease) -> None:
        """Delete a message whatever holds it: one request unless it was moved here."""
        if not await self._objects.remove(container, layout.original_name(message_id), lease):
            moved = await self._find(container, message_id)
            if moved is not None:
                await self._dead_letters.remove(container, moved, lease)

    async def release_delayed(
        self, queue: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        """Make delayed messages ready, in the order of listings; see the seam.

        Each call goes on where the last one ended, and looks at what is before that place last:
        the queue's delay may have been switched on and off again since then. Listing needs no lock,
        so a long listing may take longer than a lease.
        """
        container = self._container(queue)
        tail = await self._tails.peek(container)
        known = self._tails.known(container)
        begin = max(known.exposed_to, tail.birth)
        done = 0
        again = [(tail.birth, begin)] if begin > tail.birth else []
        for start, end in [(begin, NEVER), *again]:
            async for page in self._objects.messages(
                container, start=start, before=_before(end), first=limit + 1
            ):
                now = self._now()
                delayed = [o for o in page if o.state.is_ready(now) and o.state.is_delayed(now)]
                chosen = delayed[: limit - done]
                for first in range(0, len(chosen), _STEP):
                    some = chosen[first : first + _STEP]
                    step = partial(self._release_some, queue, version, some)
                    done += await self._connection.locked(queue, step)
                if done == limit:
                    known.exposed_to = chosen[-1].position + 1
                    return done
        known.exposed_to = 0
        return done

    async def _release_some(
        self, queue: QueueRef, version: int | None, listed: Sequence[Listed], lease: Lease
    ) -> int:
        container = self._container(queue)
        tail = await self._tails.load(container, lease)
        self._tails.known(container).tail = await self._connection.check(queue, version, tail)
        steps = (self._release_one(container, one.name, lease) for one in listed)
        with self._hints.changing(container):
            done = sum(await together(*steps))
        self._announce_returned(container, done, 0)
        return done

    async def _release_one(self, container: str, name: str, lease: Lease) -> bool:
        state = await self._objects.state(container, name)
        now = self._now()
        if state is None or not state.is_delayed(now) or not state.is_ready(now):
            return False
        exposed = replace(state, delay_expires_at=now)
        return await self._objects.mark_message(container, name, exposed, lease)

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue, a few while both locks are held; see the seam."""
        outcomes: list[Outcome] = []
        for first in range(0, len(ids), _MOVED):
            step = partial(self._move_some, queue, ids[first : first + _MOVED], move)
            outcomes += await self._connection.locked(move.target, step, also=queue)
        return outcomes

    async def _move_some(
        self, queue: QueueRef, ids: Sequence[str], move: Move, lease: Lease
    ) -> list[Outcome]:
        container = self._container(queue)
        tail = await self._tails.load(container, lease)
        found = await together(*(self._fetch(container, key) for key in ids if is_message_id(key)))
        now = self._now()
        outcomes = {
            one.listed.id: Outcome.HELD
            if one.state.is_claimed_or_parked(now) or one.state.has_lapsed(now)
            else Outcome.DONE
            for one in found
            if one is not None and one.listed.exists(tail.birth, now)
        }
        free = [one for one in found if one and outcomes.get(one.listed.id) is Outcome.DONE]
        with self._hints.changing(container):
            await self._dead_letters.move(container, free, move, lease)
        return [outcomes.get(key, Outcome.NOT_FOUND) for key in ids]

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        """End the life of all messages at once; the sweep removes them; see the seam."""

        async def work(lease: Lease) -> None:
            await self._tails.end_life(self._container(queue), lease, gone=forget)
            if forget:
                await self._connection.records.remove(queue, lease)

        await self._connection.locked(queue, work)


def _before(end: int) -> str:
    return layout.AFTER_MESSAGES if end == NEVER else layout.after_position(end - 1)


def _edited(state: State, edit: Edit, now: int) -> State:
    """The state of a delayed message after an edit."""
    due = 0 if state.is_claimed_or_parked(now) else state.delay_expires_at
    due, expires_at = edited(edit, Deadlines(due, state.expires_at), now)
    ttl_ms = state.ttl_ms if edit.ttl_ms is None else edit.ttl_ms
    return replace(state, ttl_ms=ttl_ms, expires_at=expires_at, delay_expires_at=due)


def _refusal(state: State, claim_ids: Collection[str], now: int) -> RefusalReason | None:
    return delete_refusal(state.claim_id if state.is_claimed(now) else None, claim_ids)
