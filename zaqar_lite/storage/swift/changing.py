"""Changes by id and of whole queues: edit, delete, expose, purge and drop."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from zaqar_lite.domain.errors import Conflict, Invalid, NotFound, Unavailable
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Message, QueueRef, Refusal, RefusalReason
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.dead_letters import DeadLetters
from zaqar_lite.storage.swift.layout import Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import UNLOCKED, Entry, together
from zaqar_lite.storage.swift.reading import Reading

_STEP = 200
"""Objects that a purge removes before it frees the lock for a moment.

Each by a DELETE of its own, as many at once as there are connections. Swift's bulk delete was no
faster (it deletes two at a time), and it goes on when the caller has given up, and with him the
lock.
"""
_ROUNDS = 5


class Changing:
    """Change what is there."""

    def __init__(self, backend: Backend, reading: Reading, dead_letters: DeadLetters) -> None:
        self._backend = backend
        self._objects = backend.objects
        self._reading = reading
        self._dead_letters = dead_letters

    async def edit(
        self,
        queue: QueueRef,
        message_id: str,
        *,
        body: bytes | None,
        ttl_ms: int | None,
        delay_ms: int | None,
        version: int | None,
    ) -> Message:
        """Change a delayed message; see the seam."""
        container = self._backend.containers.queue(queue)

        async def work(lease: Lease) -> Message:
            await self._backend.records.check(queue, version)
            await self._backend.tails.settle(container, lease)
            known = is_message_id(message_id)
            message = await self._reading.fetch(container, message_id) if known else None
            now = self._backend.clock.now_ms()
            if message is None or not message.state.is_live(now):
                raise NotFound(f"Message {message_id} does not exist.")
            state = message.state
            if state.is_claimed(now) or not state.is_delayed(now):
                raise Conflict(f"Message {message_id} is not delayed (any more).")
            if ttl_ms is not None:
                state = replace(state, ttl_ms=ttl_ms, expires_at=now + ttl_ms)
            if delay_ms is not None:
                state = replace(state, delay_expires_at=now + delay_ms)
            early_ms = state.delay_expires_at - state.expires_at
            if early_ms > 0:
                raise Invalid(
                    f"Message {message_id} would expire {early_ms} ms before its delay is over: "
                    "give a longer ttl or a shorter delay."
                )
            edited = message.with_state(state)
            if body is not None:
                edited = edited._replace(content=edited.content._replace(body=body))
                await self._objects.put_message(container, edited, lease)
            elif not await self._objects.mark_message(container, edited.listed.name, state, lease):
                raise NotFound(f"Message {message_id} does not exist.")
            return edited.view(now)

        return await self._backend.locked(queue, work)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam.

        Without the lock where live claims hold every one of them for longer than a request can
        take: nobody gets those meanwhile, and to acknowledge is what consumers do most.
        """
        known = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        if not known:
            return ()
        container = self._backend.containers.queue(queue)
        if claim_ids is not None and claim_ids:
            found = await self._find(container, known)
            refused = self._refused(found, claim_ids)
            now = self._backend.clock.now_ms() + self._backend.longest_call_ms
            if refused or all(one.state.is_claimed(now) for one in found):
                await self._remove([] if refused else found, container, UNLOCKED)
                return refused

        async def work(lease: Lease) -> Sequence[Refusal]:
            await self._backend.tails.settle(container, lease)
            if claim_ids is None:
                await together(*(self._remove_blindly(container, i, lease) for i in known))
                return ()
            found = await self._find(container, known)
            refused = self._refused(found, claim_ids)
            await self._remove([] if refused else found, container, lease)
            return refused

        return await self._backend.locked(queue, work)

    async def _find(self, container: str, ids: Collection[str]) -> list[Listed]:
        found = await together(*(self._reading.find(container, key) for key in ids))
        now = self._backend.clock.now_ms()
        return [one for one in found if one is not None and one.state.is_live(now)]

    def _refused(self, found: Sequence[Listed], claim_ids: Collection[str]) -> list[Refusal]:
        now = self._backend.clock.now_ms()
        return [
            Refusal(one.id, reason)
            for one in found
            if (reason := _refusal(one.state, claim_ids, now)) is not None
        ]

    async def _remove(self, found: Sequence[Listed], container: str, lease: Lease) -> None:
        await together(*(self._dead_letters.remove(container, one, lease) for one in found))

    async def _remove_blindly(self, container: str, message_id: str, lease: Lease) -> None:
        """Delete a message whatever holds it: one request where it is at home."""
        if not await self._objects.remove(container, layout.name_at_home(message_id), lease):
            moved = await self._reading.find(container, message_id)
            if moved is not None:
                await self._dead_letters.remove(container, moved, lease)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready, those first that would be first; see the seam."""
        container = self._backend.containers.queue(queue)

        async def work(lease: Lease) -> int:
            now = self._backend.clock.now_ms()
            delayed = [
                one
                async for one in self._reading.listed(queue)
                if one.state.is_ready(now) and one.state.is_delayed(now)
            ]
            chosen = heapq.nsmallest(
                limit, delayed, key=lambda one: (one.state.delay_expires_at, one.position)
            )
            done = await together(*(self._expose(container, one, lease) for one in chosen))
            return len(done)

        return await self._backend.locked(queue, work)

    async def _expose(self, container: str, listed: Listed, lease: Lease) -> None:
        state = await self._objects.state(container, listed.name)
        now = self._backend.clock.now_ms()
        if state is not None and state.is_delayed(now):
            exposed = replace(state, delay_expires_at=now)
            await self._objects.mark_message(container, listed.name, exposed, lease)

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; keep the keys and the tail; see the seam."""
        for prefix in (layout.MESSAGES, layout.CLAIMS, layout.INDEX):
            await self._empty(queue, prefix)

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue: messages first, the record last; see the seam."""
        container = self._backend.containers.queue(queue)
        await self._empty(queue, layout.MESSAGES)

        async def work(lease: Lease) -> None:
            self._backend.tails.forget(container)
            for _ in range(_ROUNDS):
                for prefix in (layout.MESSAGES, ""):
                    async for entries in self._objects.pages(container, prefix=prefix, first=_STEP):
                        await self._remove_entries(container, entries, lease)
                if await self._objects.remove_container(container, lease):
                    break
            else:
                raise Unavailable(
                    f"Swift still lists objects of the queue {queue.name!r}; delete it again."
                )
            await self._backend.records.remove(queue, lease)

        await self._backend.locked(queue, work)

    async def _empty(self, queue: QueueRef, prefix: str) -> None:
        """Remove what is listed now, in steps: a backlog takes longer than a lease may last."""
        container = self._backend.containers.queue(queue)
        newest = await self._objects.list(container, prefix=prefix, limit=1, newest_first=True)
        after, last = prefix, newest[0].name if newest else prefix
        while after < last:
            step = partial(self._remove_some, container, after, last)
            after = await self._backend.locked(queue, step)

    async def _remove_some(self, container: str, after: str, last: str, lease: Lease) -> str:
        """Remove one step of what is after `after`, up to `last`; answer where to go on."""
        limit = min(_STEP, self._objects.page)
        entries = await self._objects.list(container, after=after, before=f"{last}/", limit=limit)
        await self._remove_entries(container, entries, lease)
        return entries[-1].name if len(entries) == limit else last

    async def _remove_entries(self, container: str, entries: Sequence[Entry], lease: Lease) -> None:
        await together(*(self._objects.remove(container, entry.name, lease) for entry in entries))


def _refusal(state: State, claim_ids: Collection[str], now: int) -> RefusalReason | None:
    if not state.is_claimed(now):
        return RefusalReason.NOT_CLAIMED if claim_ids else None
    return None if state.claim_id in claim_ids else RefusalReason.CLAIMED
