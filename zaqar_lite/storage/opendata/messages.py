"""The message store: that of the tables, where RFC 0001's records or their engine ask for more."""

from collections.abc import Collection, Sequence
from hashlib import sha256

from msgspec.structs import replace

from zaqar_lite.domain.models import (
    QueueRef,
    RetryPolicyOf,
    SweepResult,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.sql import entries, expiring, posting
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.queues import NEVER

_STEP = 250
"""Messages that one batch of a purge deletes."""
_MOST_DROPPED = 4 * MAX_EXAMINED
"""Messages that one batch of a drop deletes: _STEP, and as many as were posted meanwhile."""
_NO_QUEUE = QueueRef("", "")


class OpenDataMessageStore(SqlMessageStore):
    """The message store over RFC 0001's records."""

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        kept = [
            replace(one, idempotency_key=_kept(one.idempotency_key)) if one.idempotency_key else one
            for one in messages
        ]
        key = _kept(batch_key)
        return await super().post(queue, kept, client_id=client_id, batch_key=key, version=version)

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        texts = {digest_of(text): text for text in messages}
        whole = None if batch is None else digest_of(batch)
        found = await super().find_idempotency_keys(queue, list(texts), whole)
        return found._replace(messages={texts[key]: one for key, one in found.messages.items()})

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        """Delete what a queue holds now, in steps: each message has records of its own.

        Posts wait for the first step of a drop, and for what comes after most of the messages.
        """
        async with posting.alone(self._db, queue):
            if forget and not await self._db.write(_drop_some, queue, _STEP):
                return
            last = await self._db.read(queue, _last_position, queue)
        while await self._db.write(_purge_some, queue, last) == _STEP:
            await next_turn()
        if forget:
            async with posting.alone(self._db, queue):
                await self._drop(queue)

    async def _drop(self, queue: QueueRef) -> None:
        most, before = _STEP, None
        while left := await self._db.write(_drop_some, queue, most):
            posted = 0 if before is None else max(0, left + most - before)
            most, before = min(_STEP + posted, _MOST_DROPPED), left
            await next_turn()

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        swept = await super().sweep(limit, retries_of)
        while swept.total < limit and await self._db.read(_NO_QUEUE, _has_unrouted):
            ended = await self._db.write(_end_unrouted)
            swept = swept._replace(deleted=swept.deleted + ended)
        return swept


def digest_of(key: str) -> str:
    """What is kept of an idempotency key, whatever its length: 16 bytes, as hex digits."""
    return sha256(key.encode()).digest()[:16].hex()


def _kept(key: IdempotencyKey | None) -> IdempotencyKey | None:
    return key and key._replace(text=digest_of(key.text))


def _last_position(db: Database, ref: QueueRef) -> int:
    queue = db.queue(ref)
    if queue is None:
        return 0
    statement = "SELECT ifnull(max(position), 0) FROM entry WHERE queue = ?"
    return int(db.execute(statement, (queue.content,)).get)


def _purge_some(db: Database, ref: QueueRef, last: int, most: int = _STEP) -> int:
    """Delete some messages up to a position; answer how many."""
    queue = db.queue(ref)
    if queue is None or not queue.total:
        return 0
    found = entries.entries_where(
        db, "WHERE queue = ? AND position <= ? ORDER BY position LIMIT ?",
        (queue.content, last, most),
    )  # fmt: skip
    entries.remove(db, queue, found)
    return len(found)


def _drop_some(db: Database, ref: QueueRef, most: int) -> int:
    """Delete some of what a queue has, and its row with the last; answer how much is left."""
    queue = db.queue(ref)
    if queue is None:
        return 0
    _purge_some(db, ref, NEVER, most)
    expiring.forget_keys(db, queue, NEVER, most)
    if queue.ended:
        db.touch(queue)
        rows = db.execute(
            "SELECT queue, state, number FROM history WHERE queue = ? LIMIT ?",
            (queue.number, most),
        ).fetchall()
        statement = "DELETE FROM history WHERE queue = ? AND state = ? AND number = ?"
        db.executemany(statement, rows)
        queue.ended -= len(rows)
    left = max(queue.total, queue.keys, queue.ended)
    if not left:  # in this step: whoever goes on posting must not keep the queue
        db.remove_queue(queue)
    return left


def _has_unrouted(db: Database) -> bool:
    return entries.first_of(db, "SELECT min(deadline) FROM unrouted", ()) <= db.clock.now_ms()


def _end_unrouted(db: Database) -> int:
    """Delete some messages of the log that no queue received, whose retention is over."""
    rows = db.execute(
        "SELECT deadline, id FROM unrouted WHERE deadline <= ? ORDER BY deadline LIMIT ?",
        (db.clock.now_ms(), _STEP),
    ).fetchall()
    db.executemany("DELETE FROM unrouted WHERE deadline = ? AND id = ?", rows)
    return len(rows)
