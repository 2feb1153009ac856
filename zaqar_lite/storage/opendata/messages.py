"""Messages and claims of the embedded store: memory first, then one wait for the commit."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice

from zaqar_lite.domain.errors import Conflict, Invalid, NotFound
from zaqar_lite.domain.ids import Marker, new_claim_id
from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Claimed,
    DeadLetter,
    DelayMode,
    HistoryPage,
    HistoryState,
    Message,
    NewMessage,
    Page,
    Posted,
    QueueRef,
    Refusal,
    RefusalReason,
    Stats,
    Swept,
)
from zaqar_lite.storage.base import MAX_EXAMINED, MessageStore
from zaqar_lite.storage.opendata import entries, past, posting, sweeping
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.entries import UNKNOWN, Entry
from zaqar_lite.storage.opendata.entries import Page as QueuePage
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.records import encode_payload


class OpenDataMessageStore(MessageStore):
    """The message store over RFC 0001's records."""

    capabilities = frozenset(
        {
            Capability.ATOMIC_BATCH,
            Capability.EXCLUSIVE,
            Capability.DURABLE,
            Capability.FAN_OUT,
            Capability.HISTORY,
        }
    )

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def examined(self) -> int:
        """How many entries the operations on the queues there are have looked at (for tests)."""
        return sum(queue.examined for queue in self._db.queues)

    async def open(self) -> None:
        """Open the database; see the seam."""
        await self._db.open()

    async def close(self) -> None:
        """Close the database; see the seam."""
        await self._db.close()

    async def ping(self) -> None:
        """Return when the store can be written; see the seam."""
        self._db.committer.check_writable()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: str | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        db = self._db
        there = await self._prepared(queue, version, _nothing) or db.queues.make(queue)
        posted = posting.post(db, there, messages, client_id, batch_key)
        await db.committer.durable()
        if there.total - there.cold.count > db.hot_limit:
            db.cool(there, all_pages=False)
        return posted

    async def list_messages(
        self,
        queue: QueueRef,
        *,
        marker: Marker | None = None,
        until: Marker | None = None,
        limit: int,
        exclude_client_id: str | None = None,
        include_claimed: bool = False,
        include_delayed: bool = False,
        version: int | None = None,
    ) -> Page:
        """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
        db = self._db
        there = db.queue(queue, version)
        if there is None:
            return Page((), None)
        after, last = self._resolve(marker, there), self._resolve(until, there)
        page = Page((), None)
        while True:
            start = -1 if after is None else after
            current = await self._prepared(queue, version, _cold_after(start), reads=True)
            if current is None:
                return page
            there = current
            now = db.clock.now_ms()
            db.settle(there, now)
            there.promote(now)
            examined = list(islice(there.after(start), MAX_EXAMINED))
            if exclude_client_id is not None and any(e.created_at == UNKNOWN for e in examined):
                await db.warm(there, examined)
                continue  # the queue may have changed: look again
            there.examined += len(examined)
            found: list[Entry] = []
            ended = len(examined) < MAX_EXAMINED
            for entry in examined:
                if last is not None and entry.position > last:
                    ended = True
                    break
                page.marker = after = entry.position
                if (
                    (entry.claim is None or include_claimed)
                    and (include_delayed or not entry.delayed)
                    and (exclude_client_id is None or entry.client_id != exclude_client_id)
                    and (entry.past is None or not entry.past.damaged)
                ):
                    found.append(entry)
                    if len(found) == limit:
                        break
            if found:
                page.messages = await self._read(there, found, now)
                if page.messages:
                    return page
            if ended and len(found) < limit:
                return page

    async def get_messages(self, queue: QueueRef, ids: Collection[str]) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        there = await self._prepared(queue, None, self._cold_named(ids), reads=True)
        if there is None:
            return ()
        now = self._db.clock.now_ms()
        self._db.settle(there, now)
        return await self._read(there, self._named(there, ids), now)

    async def edit(
        self,
        queue: QueueRef,
        message_id: str,
        *,
        body: bytes | None = None,
        ttl_ms: int | None = None,
        delay_ms: int | None = None,
        version: int | None = None,
    ) -> Message:
        """Change a delayed message; see the seam."""
        db = self._db
        there = await self._prepared(queue, version, self._cold_named((message_id,)))
        now = db.clock.now_ms()
        entry = None
        if there is not None:
            db.settle(there, now)
            there.promote(now)
            entry = next(iter(self._named(there, (message_id,))), None)
        if there is None or entry is None:
            raise NotFound(f"Message {message_id} does not exist.")
        if not entry.delayed:
            raise Conflict(f"Message {message_id} is not delayed (any more).")
        if body is not None and db.holders(entry) > 1:
            raise Conflict(
                f"The body of message {message_id} can't be changed: other queues hold it too."
            )
        visible_at = entry.visible_at if delay_ms is None else now + delay_ms
        expires_at = entry.expires_at if ttl_ms is None else now + ttl_ms
        if expires_at < visible_at:
            raise Invalid(
                f"Message {message_id} would expire {visible_at - expires_at} ms before its "
                "delay is over: give a longer ttl or a shorter delay."
            )
        if body is not None:
            db.store(entry.id, body, encode_payload(body))
        if ttl_ms is not None:
            there.set_ttl(entry, ttl_ms, now)
        if delay_ms is not None:
            there.set_delay(entry, visible_at)
            there.promote(now)
        message = self._view(entry, now)
        db.changed(there)
        await db.committer.durable()
        messages = [message]
        await db.fill(there, (entry,), messages)
        if not messages:
            raise NotFound(f"Message {message_id} does not exist.")
        return message

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        db = self._db
        there = await self._prepared(queue, None, self._cold_named(ids))
        if there is None:
            return ()
        now = db.clock.now_ms()
        db.settle(there, now)
        found = self._named(there, ids)
        if claim_ids is not None:
            refused = [
                Refusal(db.names.write(entry.name), reason)
                for entry in found
                if (reason := _refusal(entry, claim_ids)) is not None
            ]
            if refused:
                return refused
        keeps = past.keeps_done(there)
        for entry in found:
            if keeps and entry.claim is not None:
                past.record_done(db, there, entry, now, entry.claim.client_id)
            there.remove(entry)
        if found:
            db.changed(there)
            await db.committer.durable()
        else:
            await db.committer.visible(there.epoch)
        return ()

    async def pop(
        self,
        queue: QueueRef,
        *,
        limit: int,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None = None,
        version: int | None,
    ) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        db = self._db
        there = await self._prepared(queue, version, lambda there: there.cold_at_head(limit))
        if there is None:
            return Claimed(None)
        now = db.clock.now_ms()
        taken, moved = self._take(there, now, limit, delay_mode, dead_letter)
        with_delay = delay_mode is not DelayMode.IGNORE
        messages = [self._view(entry, now, with_delay=with_delay) for entry in taken]
        # The bodies come before anything goes, because a message that can't be read must stay.
        holder = entries.Claim(new_claim_id(), "")
        holder.deadline = now
        for entry in taken:
            entry.claim = holder
            holder.held[entry.position] = entry
        try:
            await db.fill(there, taken, messages)
        except BaseException:
            for entry in list(holder.held.values()):  # nobody gets them: back to their places
                entry.claim = None
                there.make_ready(entry)
            raise
        if taken or moved:
            keeps = past.keeps_done(there)
            for entry in list(holder.held.values()):
                if keeps:
                    past.record_done(db, there, entry, now, None)
                there.remove(entry)
            db.changed(there)
            await db.committer.durable()
        return Claimed(None, messages, moved)

    async def claim(
        self,
        queue: QueueRef,
        *,
        limit: int,
        ttl_ms: int,
        grace_ms: int,
        client_id: str,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None = None,
        version: int | None,
    ) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        db = self._db
        there = await self._prepared(queue, version, lambda there: there.cold_at_head(limit))
        if there is None:
            return Claimed(None)
        now = db.clock.now_ms()
        taken, moved = self._take(there, now, limit, delay_mode, dead_letter)
        if not taken:
            if moved:
                await db.committer.durable()
            return Claimed(None, (), moved)
        held = entries.Claim(new_claim_id(), client_id)
        for entry in taken:
            there.hold(entry, held)
        there.extend(held, now, ttl_ms, grace_ms)
        with_delay = delay_mode is not DelayMode.IGNORE
        messages = [self._view(entry, now, with_delay=with_delay) for entry in taken]
        db.changed(there)
        durable = db.committer.durable()
        try:
            await db.fill(there, taken, messages)
        finally:
            await durable
        return Claimed(held.id, messages, moved)

    async def get_claim(self, queue: QueueRef, claim_id: str) -> Claim:
        """Read a live claim; see the seam."""
        now = self._db.clock.now_ms()
        there, claim = self._live_claim(self._db.queue(queue, None), claim_id, now)
        held = [claim.held[position] for position in sorted(claim.held)]
        answer = Claim(claim.id, claim.ttl_ms, now - claim.created_at, ())
        answer.messages = await self._read(there, held, now)
        return answer

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        db = self._db
        now = db.clock.now_ms()
        there, claim = self._live_claim(db.queue_to_change(queue, None), claim_id, now)
        there.extend(claim, now, ttl_ms, grace_ms)
        db.changed(there)
        await db.committer.durable()

    async def release(self, queue: QueueRef, claim_id: str) -> None:
        """End a claim; see the seam."""
        db = self._db
        there = db.queue_to_change(queue, None)
        if there is None:
            return
        db.settle(there, db.clock.now_ms())
        claim = there.claims.get(claim_id)
        if claim is not None:
            there.end(claim)
            db.changed(there)
            await db.committer.durable()
        else:
            await db.committer.visible(there.epoch)

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        db = self._db
        there = db.queue_to_change(queue, None)
        if there is not None:
            db.purge(there, await db.all_ids(there))
            await db.committer.durable()

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam."""
        db = self._db
        there = db.queue_to_change(queue, None)
        if there is None:
            return
        await past.clear(db, there)
        db.purge(there, await db.all_ids(there))
        there.keys.clear()
        db.remove_record(there)
        db.changed(there)
        await db.committer.durable()

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        there = await self._prepared(queue, None, Queue.cold_ends, reads=True)
        if there is None:
            return Stats()
        now = self._db.clock.now_ms()
        self._db.settle(there, now)
        there.promote(now)
        stats = Stats(there.ready_count, there.delayed_count, there.claimed_count)
        ends = there.ends()
        found = await self._read(there, ends, now)
        if found:
            stats.oldest, stats.newest = found[0], found[-1]
        return stats

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        there = await self._prepared(
            queue, None, lambda there: there.cold_at(_cuts(there.total, count)), reads=True
        )
        if there is None:
            return ()
        self._db.settle(there, self._db.clock.now_ms())
        cuts = [there.nth(index) for index in _cuts(there.total, count)]
        await self._db.committer.visible(there.epoch)
        return cuts

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        db = self._db
        there = db.queue_to_change(queue, None)
        if there is None:
            return 0
        now = db.clock.now_ms()
        db.settle(there, now)
        exposed = there.expose(now, limit)
        if exposed:
            db.changed(there)
            await db.committer.durable()
        return exposed

    async def sweep(self, limit: int) -> Swept:
        """Bring queues up to now and tidy the store; see the seam."""
        return await sweeping.sweep(self._db, limit)

    async def history(
        self, queue: QueueRef, state: HistoryState, *, marker: str | None, limit: int
    ) -> HistoryPage:
        """List done or failed messages; see the seam."""
        there = self._db.queue(queue, None)
        if there is None:
            return HistoryPage((), None)
        await self._db.committer.visible(there.epoch)
        return await past.read(self._db, there, state, marker, limit)

    # -- parts --

    def _take(
        self,
        there: Queue,
        now: int,
        limit: int,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None,
    ) -> tuple[list[Entry], int]:
        """Take up to `limit` ready entries; move the exhausted ones, and count them."""
        self._db.settle(there, now)
        exposes = delay_mode is DelayMode.EXPOSE
        if delay_mode is DelayMode.HONOUR:
            there.promote(now)
        elif exposes:
            there.expose(now, limit)
        taken: list[Entry] = []
        moved = 0
        while len(taken) < limit:
            entry = there.take_first()
            if entry is None:
                if exposes and there.expose(now, limit):
                    continue
                break
            if dead_letter is not None and entry.attempts >= dead_letter.max_claims:
                past.move(self._db, there, entry, dead_letter, now)
                moved += 1
            else:
                taken.append(entry)
        return taken, moved

    async def _read(self, there: Queue, found: Sequence[Entry], now: int) -> list[Message]:
        """Show entries to a reader, once everything they were changed by is durable."""
        epoch = there.epoch
        messages = [self._view(entry, now) for entry in found]
        await self._db.fill(there, found, messages)
        await self._db.committer.visible(epoch)
        return messages

    def _view(self, entry: Entry, now: int, *, with_delay: bool = True) -> Message:
        return entry.view(self._db.names.write(entry.name), now, with_delay=with_delay)

    async def _prepared(
        self,
        ref: QueueRef,
        version: int | None,
        needed: Callable[[Queue], list[QueuePage]],
        *,
        reads: bool = False,
    ) -> Queue | None:
        """The queue of an operation, with what the operation needs in memory (`cold.py`)."""
        find = self._db.queue if reads else self._db.queue_to_change
        there = find(ref, version)
        while there is not None and there.cold.count:
            await self._db.prepare(there, self._db.clock.now_ms(), partial(needed, there))
            current = find(ref, version)
            if current is there:
                break
            there = current  # it was dropped or recovered meanwhile
        return there

    def _cold_named(self, ids: Collection[str]) -> Callable[[Queue], list[QueuePage]]:
        def needed(there: Queue) -> list[QueuePage]:
            read = self._db.names.read
            return there.cold_for_names(n for text in ids if (n := read(text)) is not None)

        return needed

    def _named(self, there: Queue, ids: Collection[str]) -> list[Entry]:
        read = self._db.names.read
        found = []
        for text in dict.fromkeys(ids):
            name = read(text)
            entry = None if name is None else there.find_named(name)
            if entry is not None:
                found.append(entry)
        return found

    def _resolve(self, marker: Marker | None, there: Queue) -> int | None:
        """The position that a marker means in this queue."""
        if marker is None:
            return None
        found = self._named(there, (marker.message_id,)) if marker.message_id else ()
        return found[0].position if found else marker.position

    def _live_claim(
        self, there: Queue | None, claim_id: str, now: int
    ) -> tuple[Queue, entries.Claim]:
        if there is not None:
            self._db.settle(there, now)
            claim = there.claims.get(claim_id)
            if claim is not None:
                return there, claim
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")


def _refusal(entry: Entry, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why an entry may not be deleted by these claims; None when it may."""
    if entry.claim is not None:
        return None if entry.claim.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None


def _cold_after(start: int) -> Callable[[Queue], list[QueuePage]]:
    return lambda there: there.cold_after(start, MAX_EXAMINED)


def _nothing(_: Queue) -> list[QueuePage]:
    return []


def _cuts(total: int, count: int) -> list[int]:
    """The indexes at which at most `count` ranges of `total` entries end."""
    ranges = min(count, total)
    return [total * (index + 1) // ranges - 1 for index in range(ranges)]
