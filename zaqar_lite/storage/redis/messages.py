"""The message store: each operation is one script, and one round trip."""

import struct
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from zaqar_lite.domain.ids import Marker, is_claim_id, is_message_id
from zaqar_lite.domain.limits import MAX_PAGE_BYTES
from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Edit,
    ListQuery,
    Message,
    Page,
    QueueRef,
    Refusal,
    RefusalReason,
    RetryPolicyOf,
    Stats,
    StoreOptions,
    SweepResult,
    no_retries,
)
from zaqar_lite.domain.refusals import Deadlines, edited, no_claim, no_message
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.redis.claiming import NO_CLAIM, Claiming
from zaqar_lite.storage.redis.codec import pack_client, pack_group, read_message, read_messages
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.limiter import FEW_TAKEN
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.posting import Posting
from zaqar_lite.storage.redis.readiness import POLL_INTERVAL_MS, Readiness
from zaqar_lite.storage.redis.records import RecordIndexes
from zaqar_lite.storage.redis.runner import Runner
from zaqar_lite.storage.redis.sweeper import Sweeper
from zaqar_lite.storage.store import Condition, Connected
from zaqar_lite.storage.watchers import Listener, Watch

_IDS = 200
"""Messages that one step of Redis looks up by their ids."""
_REASONS = {b"claimed": RefusalReason.CLAIMED, b"free": RefusalReason.NOT_CLAIMED}


class RedisMessageStore(Connected[Connection], Posting, Claiming):
    """Messages and claims in Redis."""

    poll_interval_ms = POLL_INTERVAL_MS
    sweep_step = MAX_EXAMINED // 4
    capabilities = frozenset(
        {Capability.ATOMIC_BATCH, Capability.EXCLUSIVE, Capability.DURABLE, Capability.SHARED}
    )

    def __init__(self, connection: Connection, options: StoreOptions) -> None:
        super().__init__(connection)
        self._runner = Runner(connection)
        self._outbox = Outbox(self._runner)
        self._sweeper = Sweeper(self._runner, self._outbox)
        self._options = options
        self._indexes = RecordIndexes(connection.router, connection.follow_ups)
        self._readiness = Readiness(connection.router)

    def condition(self) -> Condition:
        """Tell whether Redis has memory for more; see the seam."""
        return Condition(is_low=self._connection.router.is_full)

    async def close(self) -> None:
        """Close the connections when the other store has; see the seam."""
        await self._readiness.close()
        await super().close()

    async def list_messages(self, queue: QueueRef, selection: ListQuery) -> Page:
        """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
        after, exclude = _marker(selection.marker), selection.exclude_client_id
        last: int | None = None
        found: list[Message] = []
        examined = size = 0
        while True:
            reply = await self._runner.run(
                queue,
                "list",
                "" if selection.version is None else selection.version,
                *after,
                *_marker(selection.until),
                selection.limit - len(found),
                b"" if exclude is None else pack_client(exclude),
                "c" * selection.include_claimed + "d" * selection.include_delayed,
                "1" if selection.details else "",
                pack_group(selection.group),
                MAX_PAGE_BYTES - size,
                repeatable=True,
                is_long=examined > 0 or selection.limit > FEW_TAKEN,
            )
            _, now, count, position, at_end = reply[:5]
            self.examined += count
            examined += count
            if position:
                last = int.from_bytes(position, "big")
                after = position, b""
            some = await self._runner.read(queue, reply, 5, now, details=selection.details)
            found += some
            size += sum(len(message.body) for message in some)
            is_full = len(found) == selection.limit or size >= MAX_PAGE_BYTES
            if at_end or is_full or (found and examined >= MAX_EXAMINED):
                return Page(found, found[-1].position if found else last)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        wanted, found = _ids(ids), list[Message]()
        step = _IDS // 10 if details else _IDS  # a history may have 16 KiB
        for start in range(0, len(wanted), step):
            some = wanted[start : start + step]
            reply = await self._runner.run(
                queue,
                "get",
                "1" if details else "",
                *some,
                repeatable=True,
                is_long=len(some) > FEW_TAKEN,
            )
            found += await self._runner.read(queue, reply, 2, reply[1], details=details)
        return found

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        message_id, body = edit.message_id, edit.body
        if not is_message_id(message_id):
            raise no_message(message_id)
        status, *rest = await self._runner.run(
            queue,
            "edit",
            "" if edit.version is None else edit.version,
            bytes.fromhex(message_id),
            "" if edit.ttl_ms is None else edit.ttl_ms,
            "" if edit.delay_ms is None else edit.delay_ms,
            "" if body is None else "1",
            body or b"",
            "" if edit.if_due is None else edit.if_due // 1000,
        )
        if status == b"missing":
            raise no_message(message_id)
        if status == b"refused":
            now, due, expires = rest
            edited(edit, Deadlines(due, expires), now)  # raises why
        now, position, record, track = rest
        return read_message(position, record, track, now)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        wanted = _ids(ids)
        if not wanted:
            return ()
        claims = [
            bytes.fromhex(claim) if is_claim_id(claim) else NO_CLAIM for claim in claim_ids or ()
        ]
        step = _IDS if claim_ids is None else len(wanted)  # all or none where any may be refused
        for start in range(0, len(wanted), step):
            words = "any" if claim_ids is None else "held", len(claims), *claims
            some = wanted[start : start + step]
            status, *refused = await self._runner.run(
                queue, "delete", *words, *some, is_long=len(some) > FEW_TAKEN
            )
        if status == b"ok":
            return ()
        return [
            Refusal(message_id.hex(), _REASONS[reason])
            for message_id, reason in zip(refused[::2], refused[1::2], strict=True)
        ]

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        if not is_claim_id(claim_id):
            raise no_claim(claim_id)
        reply = await self._runner.run(
            queue,
            "get_claim",
            bytes.fromhex(claim_id),
            "1" if details else "",
            repeatable=True,
        )
        if reply[0] == b"missing":
            raise no_claim(claim_id)
        _, now, ttl, start = reply[:4]
        found = await self._runner.read(queue, reply, 4, now, details=details)
        found.sort(key=lambda message: message.position)
        return Claim(claim_id, ttl, max(0, now - start), found)

    async def import_messages(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store; see the seam."""
        await self._outbox.import_messages(queue, messages, source=source, number=number)

    async def next_due(self, queue: QueueRef) -> int | None:
        """How long until a message becomes ready by time; see the seam."""
        (left,) = await self._runner.run(queue, "next_due", repeatable=True)
        return None if left < 0 else int(left)

    async def watch(self, queue: QueueRef, listener: Listener) -> Watch:
        """Begin to announce a queue; see the seam."""
        end = await self._readiness.watch(queue, listener)
        return Watch(partial(self.next_due, queue), end)

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        """Remove all messages and claims, or the queue with its record; see the seam."""
        if not forget:
            await self._runner.run(queue, "purge")
            return
        async with self._indexes.changing(queue):
            await self._runner.run(queue, "drop")

    async def stats(self, queue: QueueRef, *, ranges: int = 0) -> Stats:
        """Count the live messages; see the seam."""
        _, now, ready, delayed, claimed, size, packed, *ends = await self._runner.run(
            queue, "stats", ranges, repeatable=True, is_long=ranges > 0
        )
        cuts = [number for (number,) in struct.iter_unpack(">Q", packed)]
        oldest, newest, *first = read_messages(ends, 0, now) or (None, None)
        since = max(first[0].created_at, first[0].delay_expires_at or 0) if first else None
        since = since and min(now, since)
        return Stats(ready, delayed, claimed, oldest, newest, since, size, cuts)

    def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        """Name the queues that the sweep will visit: all that hold something; see the seam."""
        return self._sweeper.nonempty_queues()

    async def release_delayed(
        self, queue: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        """Make delayed messages ready; see the seam."""
        done = 0
        while done < limit:
            step = min(limit - done, MAX_EXAMINED // 4)
            _, released = await self._runner.run(
                queue, "release_delayed", "" if version is None else version, step, is_long=True
            )
            done += released
            if released < step:
                break
        return done

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Tidy up what is due in any queue; see the seam."""
        await self._indexes.heal(limit)
        return await self._sweeper.sweep(limit, retries_of)


def _marker(marker: Marker | None) -> tuple[bytes, bytes]:
    """A marker as `list` takes it: the position, and the id where one was given."""
    if marker is None:
        return b"", b""
    message_id = marker.message_id
    return (
        marker.position.to_bytes(8, "big"),
        b"" if message_id is None else bytes.fromhex(message_id),
    )


def _ids(ids: Collection[str]) -> list[bytes]:
    """Ids as scripts take them, each once; malformed ones can't exist and are left out."""
    return [bytes.fromhex(item) for item in dict.fromkeys(ids) if is_message_id(item)]
