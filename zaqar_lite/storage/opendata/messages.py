"""Messages and claims of the embedded store: memory first, then one wait for the commit."""

from collections.abc import Collection, Sequence

from zaqar_lite.domain.errors import Conflict, Invalid, NotFound
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Claimed,
    DelayMode,
    Edit,
    HistoryPage,
    HistoryState,
    IdempotencyKey,
    Message,
    NewMessage,
    Page,
    Posted,
    QueueRef,
    Refusal,
    Selection,
    Stats,
    Swept,
    Take,
)
from zaqar_lite.storage.base import MessageStore, RetriesOf, no_retries
from zaqar_lite.storage.opendata import claiming, entries, listing, past, posting, sweeping
from zaqar_lite.storage.opendata.claiming import live_claim, refusal
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import expose, open_page
from zaqar_lite.storage.opendata.listing import cold_named, named, read
from zaqar_lite.storage.opendata.paging import (
    cool,
    nothing,
    prepared,
    purge,
)
from zaqar_lite.storage.opendata.reading import fill


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
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        db = self._db
        found, now = await prepared(db, queue, version, nothing)
        there = found or db.queues.make(queue)
        posted = posting.post(
            db, there, messages, client_id=client_id, batch_key=batch_key, now=now
        )
        await db.committer.durable()
        if there.total - there.cold.count > db.hot_limit:
            cool(db, there, all_pages=False)
        return posted

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List messages; see the seam."""
        marker, until, limit = selection.marker, selection.until, selection.limit
        exclude_client_id, version = selection.exclude_client_id, selection.version
        include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
        return await listing.list_messages(
            self._db,
            queue,
            marker=marker,
            until=until,
            limit=limit,
            exclude_client_id=exclude_client_id,
            include_claimed=include_claimed,
            include_delayed=include_delayed,
            version=version,
        )

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        db = self._db
        there, now = await prepared(db, queue, None, cold_named(db, ids), reads=True)
        return () if there is None else await read(db, there, named(db, there, ids), now)

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        message_id, body, version = edit.message_id, edit.body, edit.version
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        db = self._db
        there, now = await prepared(db, queue, version, cold_named(db, (message_id,)))
        found = () if there is None else named(db, there, (message_id,))
        if there is None or not found:
            raise NotFound(f"Message {message_id} does not exist.")
        entry = found[0]
        if not entry.delayed or entry.visible_at <= now:
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
            db.store(entry.id, (body,))
        if ttl_ms is not None:
            there.set_ttl(entry, ttl_ms, now)
        if delay_ms is not None:
            there.set_delay(entry, visible_at)
            open_page(there, entry.page, now)
        message = entry.view(db.names.write(entry.name), now)
        db.changed(there)
        await db.committer.durable()
        messages = [message]
        await fill(db, there, (entry,), messages)
        if not messages:
            raise NotFound(f"Message {message_id} does not exist.")
        return message

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        db = self._db
        there, now = await prepared(db, queue, None, cold_named(db, ids))
        if there is None:
            return ()
        found = named(db, there, ids)
        if claim_ids is not None:
            refused = [
                Refusal(db.names.write(entry.name), reason)
                for entry in found
                if (reason := refusal(entry, claim_ids)) is not None
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

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        limit, delay_mode, version = take.limit, take.delay_mode, take.version
        dead_letter = take.retries.dead_letter
        return await claiming.pop(
            self._db,
            queue,
            limit=limit,
            delay_mode=delay_mode,
            dead_letter=dead_letter,
            version=version,
        )

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        limit, ttl_ms, grace_ms, client_id = take.limit, take.ttl_ms, take.grace_ms, take.client_id
        delay_mode, dead_letter, version = take.delay_mode, take.retries.dead_letter, take.version
        db = self._db
        there, now, taken, moved = await claiming.take(
            db, queue, version, limit, delay_mode=delay_mode, dead_letter=dead_letter
        )
        if there is None or not taken:
            return Claimed(None, (), moved)
        held = entries.Claim(new_claim_id(), client_id)
        for entry in taken:
            there.hold(entry, held)
        there.extend(held, now, ttl_ms, grace_ms)
        with_delay = delay_mode is not DelayMode.IGNORE
        messages = [
            entry.view(db.names.write(entry.name), now, with_delay=with_delay) for entry in taken
        ]
        db.changed(there)
        durable = db.committer.durable()
        try:
            await fill(db, there, taken, messages)
        finally:
            await durable
        return Claimed(held.id, messages, moved)

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        there, now = await prepared(self._db, queue, None, nothing, reads=True)
        there, claim = live_claim(there, claim_id)
        held = [claim.held[position] for position in sorted(claim.held)]
        answer = Claim(claim.id, claim.ttl_ms, now - claim.created_at, ())
        answer.messages = await read(self._db, there, held, now)
        return answer

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        db = self._db
        there, now = await prepared(db, queue, None, nothing)
        there, claim = live_claim(there, claim_id)
        there.extend(claim, now, ttl_ms, grace_ms)
        db.changed(there)
        await db.committer.durable()

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        db = self._db
        there, _ = await prepared(db, queue, None, nothing)
        if there is None:
            return
        claim = there.claims.get(claim_id)
        if claim is not None:
            there.end(claim)
            db.changed(there)
            await db.committer.durable()
        else:
            await db.committer.visible(there.epoch)

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        if await purge(self._db, queue) is not None:
            await self._db.committer.durable()

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam.

        A long history goes in steps, each durable before the next; the record goes last. What
        others do to the queue in between goes with it, also where it was recovered or made again.
        """
        db = self._db
        while (there := await purge(db, queue)) is not None:
            if there.done.full or there.failed.full:
                await past.forget_pages(db, there)
                await db.committer.durable()
                continue
            past.forget_rest(db, there)
            there.keys.forget(entries.NEVER)
            db.remove_record(there)
            break
        await db.committer.durable()

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        return await listing.stats(self._db, queue)

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        return await listing.split(self._db, queue, count)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        db = self._db
        there, now = await prepared(db, queue, None, nothing)
        if there is None:
            return 0
        exposed = expose(there, now, limit)
        if exposed:
            db.changed(there)
            await db.committer.durable()
        return exposed

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
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
