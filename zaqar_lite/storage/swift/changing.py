"""Changes of messages, by claim, by id and of a whole queue; each in the fewest writes."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claim,
    DeadLetter,
    Edit,
    Message,
    Move,
    QueueRef,
    Refusal,
    RetryPolicy,
)
from zaqar_lite.domain.refusals import Deadlines, delete_refusal, edited, no_claim, no_message
from zaqar_lite.domain.settlements import Act, Ending, Outcome, Settled, Settlement
from zaqar_lite.storage.swift import layout, messages
from zaqar_lite.storage.swift.claiming import Claiming, Record, is_held
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together

_STEP = 100
"""Delayed messages that are made ready before the lock is freed for a moment."""


@dataclass(slots=True)
class _Message:
    """A message of the call, and what is to become of it.

    `state` is the state that will be written: with a longer lease, or after the hand-out has ended.
    """

    found: Listed
    state: State
    acked: bool = False
    ending: Ending | None = None

    def decide(
        self, claim_id: str, settlement: Settlement, retries: RetryPolicy, now: int
    ) -> Outcome:
        """Note what a settlement changes; answer its outcome."""
        is_mine, is_held = self.state.claim_id == claim_id, self.state.is_claimed(now)
        if not (is_mine and is_held):
            ended = Ended(self.state.ended) if self.state.ended else None
            return settlement.without_lease(is_held=is_held, is_last_claim=is_mine, ended=ended)
        match settlement.act:
            case Act.ACK:
                self.acked = True
            case Act.EXTEND:
                self.state = self.state.held_until(now, settlement.ttl_ms, settlement.grace_ms)
            case Act.DEAD if retries.dead_letter is None:
                return Outcome.NO_TARGET
            case _:
                self.ending = Ending.by(settlement, now, retries)
        return Outcome.DONE


class Changing(Claiming):
    """Read and settle claims; edit, delete, move and expose messages; purge queues."""

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim and what it holds; see the seam."""
        container = self._container(queue)
        record, tail = await asyncio.gather(
            self._record(container, claim_id), self._tails.peek(container)
        )
        found = await self._fetch_all(container, record.names if record else ())
        now = self._now()
        held = [m for m in found if is_held(claim_id, m, tail.birth, now)]
        if record is None or not held:
            raise no_claim(claim_id)
        views = await self._views(container, held, details=details)
        return Claim(claim_id, record.ttl_ms, now - record.started_at, views)

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Do to each message what its settlement says, or to all that is held; see the seam."""
        container = self._container(queue)
        every = settlements if isinstance(settlements, Settlement) else None
        each = {} if isinstance(settlements, Settlement) else {s.message_id: s for s in settlements}

        async def work(lease: Lease) -> Settled:
            record = await self._record(container, claim_id) if every else None
            tail = await self._tails.load(container, lease)
            await self._connection.check(queue, version, tail)
            if every is None:
                found = await self._find_live(container, each, self._objects.listed, tail)
            else:
                found = await self._held(container, record, tail) if record else []
            now = self._now()
            messages = [_Message(one, one.state) for one in found]
            outcomes = {
                message.found.id: message.decide(
                    claim_id, every or each[message.found.id], retries, now
                )
                for message in messages
            }
            ended = [message for message in messages if message.acked or message.ending]
            renewed = None
            if every and record and found and every.act is Act.EXTEND:
                renewed = replace(record, started_at=now, ttl_ms=every.ttl_ms)
            with self._hints.changing(container):
                await self._extend(container, claim_id, messages, renewed, lease)
            moved = await self._finish(container, ended, retries.dead_letter, lease)
            if every is None:
                await self._end_empty(container, [one.found for one in ended], lease)
                return Settled([outcomes.get(one, Outcome.NOT_FOUND) for one in each], moved)
            if record and every.act is Act.RELEASE:
                await self._end(container, claim_id, lease)
            return Settled([Outcome.DONE if found else Outcome.NOT_FOUND], moved)

        return await self._connection.locked(queue, work)

    async def _extend(
        self,
        container: str,
        claim_id: str,
        messages: Sequence[_Message],
        renewed: Record | None,
        lease: Lease,
    ) -> None:
        """Write the claim's own end where a lease now ends after it, and then the changed leases.

        A crash in between leaves a claim that ends late, and nothing that it holds; in the other
        order it would end early. A claim that is `renewed` begins anew.
        """
        changed = [m for m in messages if renewed or m.found.state != m.state]
        if not changed:
            return
        ends_at = max(m.state.claim_expires_at for m in changed)
        record = renewed or await self._record(container, claim_id)
        if record is not None and (renewed or record.ends_at < ends_at):
            ends_at = max(record.ends_at, ends_at)
            kind, name = replace(record, ends_at=ends_at).content_type, layout.CLAIMS + claim_id
            await self._objects.mark(container, name, kind, lease, ends=ends_at)
        await together(*(self._messages.write(container, m.found, m.state, lease) for m in changed))
        self._hints.announce(container, (m.state for m in changed))

    async def _finish(
        self,
        container: str,
        messages: Sequence[_Message],
        policy: DeadLetter | None,
        lease: Lease,
    ) -> int:
        """Write what became of messages whose hand-out ended; answer how many were moved."""
        with self._hints.changing(container):
            letters = await together(*(self._write(container, m, lease) for m in messages))
            dead = [letter for letter in letters if letter is not None]
            moved = await self._dead_letters.send(container, dead, policy, lease)
        back = (m.state for m in messages if m.ending and not m.state.move_reason)
        self._hints.announce(container, back)
        return moved

    async def _write(self, container: str, message: _Message, lease: Lease) -> Fetched | None:
        """Delete or give back a message whose hand-out ended; answer it if it is to be moved."""
        found = message.found
        if message.acked:
            await self._messages.remove(container, found, lease)
        if message.ending is None:
            return None
        message.state = await self._end_attempt(container, found, message.ending, lease)
        if message.state.move_reason:
            letter = await self._objects.fetch(container, found.name)
            return None if letter is None else replace(letter, state=message.state)
        await self._messages.write(container, found, message.state, lease)
        return None

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        container = self._container(queue)
        message_id = edit.message_id

        async def work(lease: Lease) -> Message:
            tail = await self._tails.load(container, lease)
            await self._connection.check(queue, edit.version, tail)
            found = await self._find_live(container, [message_id], self._objects.fetch, tail)
            if not found:
                raise no_message(message_id)
            (message,), now = found, self._now()
            after = _edited(message, edit, now)
            with self._hints.changing(container):
                if edit.body is not None:
                    await self._messages.keep(container, message, after.state, lease)
                    await self._objects.put_message(container, after, lease)
                elif not await self._messages.write(container, message, after.state, lease):
                    raise no_message(message_id)
            self._hints.announce(container, [after.state])
            return after.view(now)

        return await self._connection.locked(queue, work)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam.

        It needs no lock where live claims hold all of them for longer than a request can take:
        nobody else gets those meanwhile. Acknowledging is what consumers do most.
        """
        began = time.monotonic()
        known = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        if not known:
            return ()
        container = self._container(queue)
        self._tails.known(container).room = None
        if claim_ids:
            longest = self._connection.longest_call
            found = await self._find_live(container, known, self._objects.listed)
            late = self._now() + int(longest * 1000)
            if all(one.state.is_claimed(late) for one in found):
                until = began + longest - self._connection.swift.fence.lasts
                return await self._delete(container, found, claim_ids, Lease(until))

        async def work(lease: Lease) -> Sequence[Refusal]:
            tail = await self._tails.load(container, lease)
            if claim_ids is None:
                await together(*(self._remove_unchecked(container, i, lease) for i in known))
                return ()
            found = await self._find_live(container, known, self._objects.listed, tail)
            return await self._delete(container, found, claim_ids, lease)

        return await self._connection.locked(queue, work)

    async def _delete(
        self, container: str, found: Sequence[Listed], claim_ids: Collection[str], lease: Lease
    ) -> Sequence[Refusal]:
        """Delete messages unless one is refused."""
        refused, now = list[Refusal](), self._now()
        for one in found:
            holder = one.state.claim_id if one.state.is_claimed(now) else None
            if (reason := delete_refusal(holder, claim_ids)) is not None:
                refused.append(Refusal(one.id, reason))
        if not refused:
            await together(*(self._messages.remove(container, one, lease) for one in found))
            await self._end_empty(container, found, lease)
        return refused

    async def _remove_unchecked(self, container: str, message_id: str, lease: Lease) -> None:
        """Delete a message whatever holds it: one request unless it was moved here."""
        if not await self._objects.remove(container, layout.original_name(message_id), lease):
            moved = await self._read_by_id(container, message_id, self._objects.listed)
            if moved is not None:
                await self._messages.remove(container, moved, lease)

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
        done, ranges = 0, [(begin, layout.AFTER_MESSAGES)]
        if begin > tail.birth:
            ranges.append((tail.birth, layout.after_position(begin - 1)))
        for start, before in ranges:
            async for page in self._objects.messages(
                container, start=start, before=before, first=limit + 1
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
            done = [state for state in await together(*steps) if state is not None]
        self._hints.announce(container, done)
        return len(done)

    async def _release_one(self, container: str, name: str, lease: Lease) -> State | None:
        found, now = await self._objects.listed(container, name), self._now()
        if found is None or not found.state.is_delayed(now) or not found.state.is_ready(now):
            return None
        exposed = replace(found.state, delay_expires_at=now)
        marked = await self._objects.mark_message(container, name, exposed, lease)
        return exposed if marked else None

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue, a few while both locks are held; see the seam."""
        outcomes: list[Outcome] = []
        for first in range(0, len(ids), messages.STEP):
            some = ids[first : first + messages.STEP]
            step = partial(self._move_some, queue, some, move)
            outcomes += await self._connection.locked(queue, step)
        return outcomes

    async def _move_some(
        self, queue: QueueRef, ids: Sequence[str], move: Move, lease: Lease
    ) -> list[Outcome]:
        container = self._container(queue)
        tail = await self._tails.load(container, lease)
        found = await self._find_live(container, ids, self._objects.fetch, tail)
        now = self._now()
        held = {m.id for m in found if m.state.is_claimed_or_parked(now) or m.state.has_lapsed(now)}
        free = [message for message in found if message.id not in held]
        with self._hints.changing(container):
            await self._dead_letters.move(container, free, move, lease)
        outcomes = {m.id: Outcome.HELD if m.id in held else Outcome.DONE for m in found}
        return [outcomes.get(key, Outcome.NOT_FOUND) for key in ids]

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        """End the life of all messages at once; the sweep removes them; see the seam."""

        async def work(lease: Lease) -> None:
            await self._tails.end_life(self._container(queue), lease, gone=forget)
            if forget:
                await self._connection.records.remove(queue, lease)

        await self._connection.locked(queue, work)


def _edited(message: Fetched, edit: Edit, now: int) -> Fetched:
    """A delayed message after an edit."""
    state, content = message.state, message.content
    due = 0 if state.is_claimed_or_parked(now) else state.delay_expires_at
    due, expires_at = edited(edit, Deadlines(due, state.expires_at), now)
    ttl_ms = state.ttl_ms if edit.ttl_ms is None else edit.ttl_ms
    state = replace(state, ttl_ms=ttl_ms, expires_at=expires_at, delay_expires_at=due)
    if edit.body is not None:
        state, content = replace(state, size=len(edit.body)), content._replace(body=edit.body)
    return Fetched(message.name, state, content)
