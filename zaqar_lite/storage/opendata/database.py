"""What the two stores share: the engine, the queues in memory, ids, and the batch that gathers."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QueueChanged, Unavailable
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.base import Listener
from zaqar_lite.storage.opendata import loading
from zaqar_lite.storage.opendata.catalogue import Catalogue
from zaqar_lite.storage.opendata.checkpoint import encode_changes
from zaqar_lite.storage.opendata.committer import Committer
from zaqar_lite.storage.opendata.due import settle
from zaqar_lite.storage.opendata.engine import Batch, Damage, Engine
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import encode_state
from zaqar_lite.storage.opendata.format.encoding import var_u64
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.format.records import (
    CLIENT_HEADER,
    QUEUE_HEADER,
    encode_headers,
    encode_payload,
    encode_posted,
)
from zaqar_lite.storage.opendata.ids import Ids, Names
from zaqar_lite.storage.opendata.opening import open_store
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.queues import Queues
from zaqar_lite.storage.opendata.reading import Bodies
from zaqar_lite.storage.opendata.replay import replay
from zaqar_lite.storage.opendata.restoring import put_back

logger = logging.getLogger(__name__)
_CACHED_BODIES = 16 * 1024 * 1024
_MAX_SUFFIXES = 10_000
_HOT_MESSAGES = 1_000_000
_LAST_BATCH = 20.0
"""Seconds that closing waits for what is being written: a disk may hang."""


class Database:
    """The working state in memory over an engine; operations change it, the committer saves it.

    Every operation is a plain function on this state without an await inside, followed by one
    wait for the batch it is in.
    """

    def __init__(self, engine: Engine, clock: Clock, options: StoreOptions) -> None:
        self.engine = engine
        self.clock = clock
        self.options = options
        self.queues = Queues()
        self.catalogue = Catalogue()
        self.shared: dict[int, int] = {}  # message id -> how many queues hold it, if more than one
        self.puts: dict[bytes, bytes] = {}
        self.deletes: dict[bytes, None] = {}
        self.touched: set[Queue] = set()
        self.written: Batch = Batch({}, ())
        self.written_touched: set[Queue] = set()
        self.committer = Committer(engine, self._take, self._recover, self._tell)
        self.watched: Counter[QueueRef] = Counter()
        self.listener: Listener | None = None
        self._news: dict[QueueRef, int] = {}  # of the batch that gathers
        self._written_news: dict[QueueRef, int] = {}
        self.ids = Ids(0)
        self.names = Names(b"unopened")
        self.secret = bytes(16)
        self.routed = 0
        self.segments: list[tuple[int, int]] = []  # (first sequence, segment), ascending
        self.log_prefix = b""
        self.log_start = 0
        self.garbage: deque[bytes] = deque()
        self.next_garbage = 0
        self.damages: list[Damage] = []
        self._suffixes: dict[tuple[QueueRef, str], tuple[int, bytes]] = {}
        self.bodies = Bodies(int(options.extra.get("payload_cache_bytes", _CACHED_BODIES)))
        self.hot_limit = int(options.extra.get("messages_in_memory", _HOT_MESSAGES))
        self._in_doubt: set[QueueRef] = set()  # what a batch changes that may still be stored
        self._users = 0
        self._opening = asyncio.Lock()

    # -- life --

    async def open(self) -> None:
        """Open the engine and load the state, for the first of the stores that opens."""
        async with self._opening:
            if self._users == 0:
                await self.engine.open()
                try:
                    await open_store(self)
                    await put_back(self, await loading.load(self))
                    await self.catalogue.load(self)
                    self._forget_empty_claims()
                    await replay(self)
                    if self.puts or self.touched:
                        await self.committer.durable()
                    if self.engine.was_rebuilt:
                        await self.engine.forget_rebuild()
                except BaseException:
                    await self.engine.close()
                    raise
            self._users += 1

    def _forget_empty_claims(self) -> None:
        """Let claims be over that hold nothing, unless what they hold may be in a lost page."""
        for queue in self.queues:
            if queue.claims and not queue.damaged_pages:
                queue.forget_empty_claims()
                if queue.changed_claims:
                    self.touched.add(queue)

    async def close(self) -> None:
        """Finish what is under way and close the engine, for the last of the stores that closes."""
        async with self._opening:
            if self._users == 0:
                return
            self._users -= 1
            if self._users:
                return
            finishing = asyncio.create_task(self._finish())
            await asyncio.wait({finishing}, timeout=_LAST_BATCH)
            if not finishing.done():
                logger.error("the last batch is not written after %g s: given up", _LAST_BATCH)
            await self.engine.close()
            await finishing

    async def _finish(self) -> None:
        try:
            if self.touched or self.puts:
                await self.committer.durable()
        except Unavailable as exc:
            logger.warning("closing without the last tidying: %s", exc)
        await self.committer.finish()

    # -- operations --

    def queue(self, ref: QueueRef, version: int | None) -> Queue | None:
        """The queue to read, if there is one, at the version that the caller decided by.

        Raises:
            QueueChanged: its record is at another version.
            Unavailable: the state is being recovered.
        """
        self.committer.check_readable()
        queue = self.queues.get(ref)
        if version is not None:
            record = None if queue is None else queue.record
            if version != (0 if record is None else record.version):
                raise QueueChanged(f"The queue {ref.name!r} is not at version {version} any more.")
        return queue

    def queue_to_change(self, ref: QueueRef, version: int | None) -> Queue | None:
        """The queue to change, if there is one; refuses while nothing can be written."""
        self.committer.check_writable()
        return self.queue(ref, version)

    def is_current(self, queue: Queue) -> bool:
        """Whether a queue was not replaced, by a recovery, since the caller found it."""
        return self.queues.get(queue.ref) is queue

    def changed(self, queue: Queue) -> None:
        """Note that an operation changed a queue: its readers wait for the batch.

        Raises:
            Unavailable: a recovery has replaced the queue, so the change is lost.
        """
        if not self.is_current(queue):
            raise Unavailable("A write failed meanwhile; nothing of this was stored.")
        queue.epoch = self.committer.epoch
        self.touched.add(queue)

    def settle(self, queue: Queue, now: int) -> bool:
        """Bring a queue up to now, or one step nearer; answer whether it is there (`due.py`).

        What that changes is saved with the next batch.
        """
        is_settled = settle(queue, now)
        if queue.removed or queue.changed_pages or queue.keys.changed:
            self.touched.add(queue)
        return is_settled

    def publish(self, queue: Queue, entries: Sequence[Entry], bodies: Sequence[bytes]) -> None:
        """Put new messages of one client, with ids in a row, into the batch: payloads and log.

        Before they enter their queues: of what can't be encoded, nothing must be left in memory.
        """
        client_id = entries[0].client_id or ""
        puts, prefix, start = self.puts, self.log_prefix, self.log_start
        plain = self._log_headers(queue, client_id, None)
        try:
            for entry in entries:
                own = entry.headers
                number, headers = self._log_headers(queue, client_id, own) if own else plain
                message_id, now = entry.id, entry.created_at
                puts[prefix + var_u64(message_id - start)] = encode_posted(
                    message_id, now, entry.visible_at or now, -(-(entry.expires_at - now) // 1000),
                    number, headers,
                )  # fmt: skip
        except ValueError:
            for entry in entries:
                puts.pop(self.log_key(entry.id), None)
            raise
        self.store(entries[0].id, bodies)

    def store(self, first: int, bodies: Sequence[bytes]) -> None:
        """Put the payloads of ids in a row into the batch; remember them for those who will ask."""
        puts = self.puts
        for message_id, body in enumerate(bodies, first):
            puts[PAYLOAD_PREFIX + message_id.to_bytes(8, "big")] = encode_payload(body)
        self.bodies.keep(first, bodies)

    def _log_headers(
        self, queue: Queue, client_id: str, headers: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        """Count and encode the headers of a message's metadata: queue and client, then its own."""
        known = self._suffixes.get((queue.ref, client_id))
        if known is None:
            if len(self._suffixes) >= _MAX_SUFFIXES:
                self._suffixes.clear()
            reserved = [(QUEUE_HEADER, queue.raw.decode()), (CLIENT_HEADER, client_id)]
            known = self._suffixes[queue.ref, client_id] = (2, encode_headers(reserved))
        if not headers:
            return known
        return known[0] + len(headers), known[1] + encode_headers(list(headers.items()))

    def log_key(self, message_id: int) -> bytes:
        """The key of a message's entry in the metadata log."""
        if message_id >= self.log_start:
            return self.log_prefix + var_u64(message_id - self.log_start)
        start, segment = max(pair for pair in self.segments if pair[0] <= message_id)
        return keys.log_entry_key(segment, message_id - start)

    def holders(self, entry: Entry) -> int:
        """How many queues hold an entry's message."""
        if entry.past is None or not entry.past.shared:
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

    def remove_record(self, queue: Queue) -> None:
        """Remove a queue's record, and the empty records that were made with it."""
        if queue.record is not None:
            self.queues.set_record(queue, None)
            key = keys.queue_key(RecordType.CONFIG, queue.raw)
            self.delete(key)

    # -- who waits --

    def announce(self, ref: QueueRef, count: int) -> None:
        """Tell who waits for a queue, once the batch is durable, that messages became ready."""
        if ref in self.watched:
            self._news[ref] = self._news.get(ref, 0) + count

    def _tell(self) -> None:
        """Tell the listener what the batch that is durable now made ready."""
        told, self._written_news = self._written_news, {}
        if self.listener is None:
            return
        for ref, count in told.items():
            if ref in self.watched:
                try:
                    self.listener(ref, count)
                except Exception:  # the batch is durable whatever becomes of a hint
                    logger.exception("who waits for %s was not told", ref)

    # -- the batch --

    def _take(self) -> Batch:
        """Encode everything that changed since the last batch."""
        puts, deletes, touched = self.puts, self.deletes, self.touched
        for queue in touched:
            if self.is_current(queue):
                encode_changes(self, queue, puts, deletes)
                self.queues.agenda.changed(queue)
        puts[keys.STATE] = encode_state(self.ids.next, self.clock.now_ms(), self.secret)
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self.written_touched = Batch(puts, list(deletes)), touched
        self._written_news, self._news = self._news, {}
        self.catalogue.begin_batch()
        return self.written

    def _forget_batches(self) -> None:
        """Forget what is elsewhere in memory of the batches that failed: bodies, and garbage."""
        for puts in (self.written.puts, self.puts):
            for key in puts:
                if key.startswith(PAYLOAD_PREFIX):
                    self.bodies.forget(keys.read_message_id(key))
        garbage = keys.prefix(RecordType.GARBAGE)
        for deletes in (self.written.deletes, self.deletes):
            self.garbage.extend(key for key in deletes if key.startswith(garbage))

    async def _recover(self) -> None:
        """Bring every queue that a failed batch had changed back to what the engine holds."""
        refs = {queue.ref for queue in self.touched | self.written_touched} | self._in_doubt
        self._in_doubt = refs if self.engine.is_in_doubt else set()
        self._forget_batches()
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self.written_touched = Batch({}, ()), set()
        self._written_news, self._news = {}, {}
        self.ids.forget_stored()
        await self.catalogue.reload(self)
        await loading.reload(self, sorted(refs))
