"""The state that operations work on: queues, ids, bodies, and the batch that gathers.

An operation is a plain function on the state: it reads and changes it without an await in between,
and then waits once for its batch. This module imports no operation; `database.py`, on top of all,
opens the state, writes its batches and recovers it.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record, StoreOptions
from zaqar_lite.domain.refusals import queue_changed
from zaqar_lite.domain.turns import Turns
from zaqar_lite.storage.base import Listener
from zaqar_lite.storage.opendata.committer import Committer
from zaqar_lite.storage.opendata.due import catch_up
from zaqar_lite.storage.opendata.engine import Batch, Damage, Engine, Row, Stored, Unreadable
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.format import CodecError, after_prefix, keys, records, var_u64
from zaqar_lite.storage.opendata.format.bookkeeping import encode_block, encode_record
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.queues import BodyCache, PageCache, Queues
from zaqar_lite.storage.records import Catalogue
from zaqar_lite.storage.sql.shares import Shares

logger = logging.getLogger(__name__)
_CACHED_BODIES = 16 * 1024 * 1024
_MAX_SUFFIXES = 10_000
_RECENT_IDS = 2_048
_PAGE_CACHE = 32 * 1024 * 1024
_DISPENSABLE = (keys.LOG, keys.prefix(RecordType.UNROUTED), keys.prefix(RecordType.ADOPTED))
T = TypeVar("T")


class State:
    """The working state in memory; operations change it, the committer saves it."""

    def __init__(
        self, engine: Engine, clock: Clock, options: StoreOptions, committer: Committer
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.options = options
        self.queues = Queues()
        self.catalogue = Catalogue()
        self.shared: dict[int, int] = {}  # message id -> how many queues hold it, if more than one
        self.puts: dict[bytes, bytes] = {}
        self.deletes: dict[bytes, None] = {}
        self.touched: set[Queue] = set()  # to be encoded for the batch that gathers
        self.encoded: set[Queue] = set()  # encoded for it, and not touched since
        self.written: Batch = Batch({}, ())
        self.committer = committer
        self.watched: Counter[QueueRef] = Counter()
        self.listener: Listener | None = None
        self.ready_counts: dict[QueueRef, int] = {}  # new ready messages in the batch that gathers
        self.ids = Ids(0)
        self.id_texts = IdTexts(b"unopened")
        self.secret = bytes(16)
        self.routed: int | None = 0  # entries of the log below this id are in queues; None: all
        self.segments: list[tuple[int, int]] = []  # (first sequence, segment), ascending
        self.log_prefix = b""
        self.log_start = 0
        self.shares = Shares(committer.durable)
        self.turns = Turns()
        self.staging: dict[QueueRef, asyncio.Event] = {}  # queues with a large post under way
        self.garbage: deque[bytes] = deque()
        self.next_garbage = 0
        self.unrouted_due = 0  # the retention of no unrouted message ends before
        self.damages: list[Damage] = []
        self.is_rebuilt = False  # filled from a damaged store: any record may be missing
        self._suffixes: dict[tuple[QueueRef, str], tuple[int, bytes]] = {}
        self.bodies = BodyCache(int(options.extra.get("payload_cache_bytes", _CACHED_BODIES)))
        self.page_cache = PageCache(int(options.extra.get("page_cache_bytes", _PAGE_CACHE)))

    def queue(self, ref: QueueRef, version: int | None) -> Queue | None:
        """The queue to read, if it exists, provided its record has the version that the caller saw.

        Raises QueueChanged: it has another version; Unavailable: the state is being recovered.
        """
        self.committer.check_readable()
        queue = self.queues.get(ref)
        if version is not None:
            record = None if queue is None else queue.record
            if version != (0 if record is None else record.version):
                raise queue_changed(ref)
        return queue

    def queue_to_change(self, ref: QueueRef, version: int | None) -> Queue | None:
        """The queue to change, as `queue`; also raises Unavailable while nothing can be written."""
        self.committer.check_writable()
        return self.queue(ref, version)

    def is_current(self, queue: Queue) -> bool:
        """Whether a queue was not replaced, by a recovery, since the caller found it."""
        return self.queues.is_current(queue)

    def changed(self, queue: Queue) -> None:
        """Note that an operation changed a queue, so that its readers wait for the batch.

        Raises Unavailable: a recovery has replaced the queue, so the change is lost.
        """
        if not self.is_current(queue):
            raise Unavailable("A write failed meanwhile; nothing of this was stored.")
        queue.epoch = self.committer.epoch
        self.touched.add(queue)

    def catch_up(self, queue: Queue, now: int) -> bool:
        """Tidy up what is due in a queue, one step's worth; answer whether that was all (`due.py`).

        What that changes is saved with the next batch.
        """
        is_settled = catch_up(queue, now)
        if queue.is_changed:
            self.touched.add(queue)
        return is_settled

    def publish(self, queue: Queue, entries: Sequence[Entry], bodies: Sequence[bytes]) -> None:
        """Put one client's new messages into the batch: payloads and log entries, ids in a row.

        To be called before they enter their queues: if one can't be encoded, nothing has changed.
        """
        client_id = entries[0].client_id or ""
        puts, prefix, start = self.puts, self.log_prefix, self.log_start
        plain = self._log_headers(queue, client_id, None)
        try:
            for entry in entries:
                own = entry.headers
                number, headers = self._log_headers(queue, client_id, own) if own else plain
                message_id, now = entry.id, entry.created_at
                puts[prefix + var_u64(message_id - start)] = records.encode_posted(
                    message_id, now, entry.visible_at or now, -(-(entry.expires_at - now) // 1000),
                    number, headers,
                )  # fmt: skip
        except ValueError:
            for entry in entries:
                puts.pop(self.log_key(entry.id), None)
            raise
        self.store(entries[0].id, bodies)

    def store(self, first: int, bodies: Sequence[bytes]) -> None:
        """Put the payloads of ids in a row into the batch and the cache."""
        puts = self.puts
        for message_id, body in enumerate(bodies, first):
            puts[PAYLOAD_PREFIX + message_id.to_bytes(8, "big")] = records.encode_payload(body)
        self.bodies.keep(first, bodies)

    def _log_headers(
        self, queue: Queue, client_id: str, headers: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        """Count and encode the headers of a log entry: queue and client, then the message's own."""
        known = self._suffixes.get((queue.ref, client_id))
        if known is None:
            if len(self._suffixes) >= _MAX_SUFFIXES:
                self._suffixes.clear()
            reserved = [
                (records.QUEUE_HEADER, queue.raw.decode()),
                (records.CLIENT_HEADER, client_id),
            ]
            known = self._suffixes[queue.ref, client_id] = (2, records.encode_headers(reserved))
        if not headers:
            return known
        return known[0] + len(headers), known[1] + records.encode_headers(list(headers.items()))

    def log_key(self, message_id: int) -> bytes:
        """The key of a message's entry in the metadata log."""
        if message_id >= self.log_start:
            return self.log_prefix + var_u64(message_id - self.log_start)
        start, segment = max(pair for pair in self.segments if pair[0] <= message_id)
        return keys.log_entry_key(segment, message_id - start)

    def keep_foreign_id(self, message_id: int, text: str) -> None:
        """Let a message keep the id that another store gave it, while it is stored."""
        self.id_texts.adopt({message_id: text})
        self.put(keys.message_key(RecordType.ADOPTED, message_id), bytes.fromhex(text))

    def forget_foreign_id(self, message_id: int) -> None:
        """Let the batch delete the id that another store gave a message, if one did."""
        if self.id_texts.forget(message_id):
            self.delete(keys.message_key(RecordType.ADOPTED, message_id))

    def delete_message(self, message_id: int) -> None:
        """Let the batch delete what is stored of a message that no queue holds any more."""
        self.delete(PAYLOAD_PREFIX + message_id.to_bytes(8, "big"))
        self.delete(self.log_key(message_id))
        self.forget_foreign_id(message_id)
        self.bodies.forget(message_id)

    def holders(self, entry: Entry) -> int:
        """How many queues hold an entry's message."""
        if entry.extras is None or not entry.extras.shared:
            return 1
        return self.shared.get(entry.id, 1)

    def put(self, key: bytes, value: bytes) -> None:
        """Put a record into the batch."""
        self.puts[key] = value
        self.deletes.pop(key, None)

    def delete(self, key: bytes) -> None:
        """Let the batch delete a record."""
        self.puts.pop(key, None)
        self.deletes[key] = None

    async def read(self, wanted: Iterable[bytes]) -> dict[bytes, Stored]:
        """Read records, with the changes of batches that are not durable yet."""
        found: dict[bytes, Stored] = {}
        absent = []
        for key in wanted:
            value = self.puts.get(key) or self.written.puts.get(key)
            if value is None:
                absent.append(key)
            else:
                found[key] = value
        if absent:
            found |= await self.engine.get(absent)
        return found

    async def rows(self, start: bytes, end: bytes | None = None) -> AsyncIterator[Row]:
        """Read the stored records of a range, or of a prefix, one by one.

        Where the metadata log, the list of what no queue received, or the ids of other stores can't
        be read on, that is named: what is in queues is served without. Raises Unreadable: other
        records can't be.
        """
        try:
            async for chunk in self.engine.scan(start, after_prefix(start) if end is None else end):
                for row in chunk:
                    yield row
        except Unreadable as exc:
            if not start.startswith(_DISPENSABLE):
                raise
            logger.error("damaged: %s", exc)
            self.damages.append(Damage(exc.last, str(exc)))

    def decoded(self, key: bytes, value: Stored, decode: Callable[[bytes], T]) -> T | None:
        """Decode a record; None, and logged, where it can't be read."""
        if isinstance(value, bytes):
            try:
                return decode(value)
            except CodecError as exc:
                value = Damage(key, str(exc))
        self.damaged(value)
        return None

    def put_queue(self, queue: Queue, record: QueueRecord, config: bytes) -> None:
        """Write a queue's record, in memory and into the batch."""
        self.changed(queue)
        self.queues.set_record(queue.ref, record)
        self.put(keys.queue_key(RecordType.CONFIG, queue.raw), config)

    def remove_record(self, queue: Queue) -> None:
        """Remove a queue's record, from memory and with the batch."""
        if queue.record is not None:
            self.queues.set_record(queue.ref, None)
            self.delete(keys.queue_key(RecordType.CONFIG, queue.raw))

    async def finish(self, queue: Queue, *, changed: object) -> None:
        """Wait until the operation's change of a queue is durable, or what it read of the queue.

        Raises Unavailable: that failed, or a recovery has replaced the queue.
        """
        if changed:
            self.changed(queue)
            await self.committer.durable()
        else:
            await self.committer.visible(queue.epoch)

    def announce(self, ref: QueueRef, count: int) -> None:
        """Tell the consumers that wait for a queue of ready messages, once the batch is durable."""
        if ref in self.watched:
            self.ready_counts[ref] = self.ready_counts.get(ref, 0) + count

    def put_record(self, record: Record) -> None:
        """Write a record of the catalogue, in memory and into the batch."""
        key = keys.record_key(record.kind, record.project, record.name)
        value = encode_record(record.version, record.expires_at, record.value)
        self.catalogue.put(record)
        self.put(key, value)
        self.catalogue.epoch = self.committer.epoch

    def delete_record(self, record: Record) -> None:
        """Remove a record of the catalogue, from memory and with the batch."""
        key = keys.record_key(record.kind, record.project, record.name)
        self.catalogue.remove(record.kind, record.project, record.name)
        self.delete(key)
        self.catalogue.epoch = self.committer.epoch

    def damaged(
        self, damage: Damage, kind: RecordType | None = None, where: keys.QueueKey | None = None
    ) -> None:
        """Log a record that can't be read; a damaged page is never overwritten."""
        logger.error("damaged: %s; the record is left as it is", damage)
        self.damages.append(damage)
        if kind is RecordType.ACTIVE and where is not None:
            try:
                queue = self.queues.make(keys.read_queue_id(where.queue))
                queue.damaged_page(keys.read_page(where.rest))
            except CodecError:
                logger.error("damaged: %s belongs to no queue", damage)


BLOCK_SIZE = 4096


class Ids:
    """Hands out ids from blocks that are durable before the first use of an id, or with it.

    A crash skips the rest of a block: ids are never used twice. The sequences of the metadata log
    are the same numbers, so a message's id finds its metadata.
    """

    def __init__(self, end: int) -> None:
        self.next = end
        self._end = end

    def take(self, count: int, puts: dict[bytes, bytes]) -> int:
        """Take `count` ids in a row; answer the first. A new block goes into `puts`."""
        first = self.next
        self.next = first + count
        if self.next > self._end:
            base, size = self._end, max(BLOCK_SIZE, self.next - self._end)
            self._end = base + size
            puts[keys.ID_BLOCK] = puts[keys.LOG_BLOCK] = encode_block(base, size)
        return first

    def leave_block(self) -> None:
        """Begin a block with the next ids, because the batch that had this one failed."""
        self._end = self.next

    def reserve(self, message_id: int) -> None:
        """Never hand out ids up to `message_id`, which another writer used."""
        if message_id >= self.next:
            self.next = message_id + 1


class IdTexts:
    """The texts of ids: 16 hex digits of the number, 16 of a keyed hash of it.

    The hash serves as the random part of an id without being stored: without the store's secret,
    a client can't name a message that it was never given. A message that came from another store
    keeps the text that it had there.
    """

    def __init__(self, secret: bytes) -> None:
        keyed_hash = blake2b(key=secret, digest_size=8)

        @lru_cache(_RECENT_IDS)
        def hashed(number: int) -> str:
            digits = number.to_bytes(8, "big")
            keyed = keyed_hash.copy()
            keyed.update(digits)
            return digits.hex() + keyed.hexdigest()

        self._hashed = hashed  # cached: an id is often asked for soon after it was shown
        self._adopted: dict[int, str] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}

    def adopt(self, texts: Mapping[int, str]) -> None:
        """Let messages have the texts that another store gave them."""
        for number, text in texts.items():
            self._adopted[number] = text
            self._numbers[text] = (*self._numbers.get(text, ()), number)

    def forget_adopted(self) -> None:
        """Forget all texts that other stores gave."""
        self._adopted, self._numbers = {}, {}

    def forget(self, number: int) -> bool:
        """Forget the text that another store gave a message; answer whether one did."""
        text = self._adopted.pop(number, None)
        if text is None:
            return False
        others = tuple(one for one in self._numbers.pop(text) if one != number)
        if others:
            self._numbers[text] = others
        return True

    def write(self, number: int) -> str:
        """The text of a number."""
        if self._adopted and (adopted := self._adopted.get(number)) is not None:
            return adopted
        return self._hashed(number)

    def read(self, text: str) -> tuple[int, ...]:
        """The numbers of a text; a text from another store may be used in several queues."""
        adopted = self._numbers.get(text, ())
        try:
            number = int(text[:16], 16)
        except ValueError:
            return adopted
        return (*adopted, number) if number >= 0 and self.write(number) == text else adopted
