"""What the two stores share: the engine, the queues in memory, ids, and the batch that gathers."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QueueChanged, Unavailable
from zaqar_lite.domain.models import Message, QueueRef, StoreOptions
from zaqar_lite.storage.opendata import keys
from zaqar_lite.storage.opendata.active import encode_active, read_active
from zaqar_lite.storage.opendata.cold import entries_of
from zaqar_lite.storage.opendata.committer import Committer
from zaqar_lite.storage.opendata.encoding import CodecError, var_u64
from zaqar_lite.storage.opendata.engine import Batch, Damage, Engine, Stored
from zaqar_lite.storage.opendata.entries import PAGE_SIZE, UNKNOWN, Entry, Page
from zaqar_lite.storage.opendata.history import History
from zaqar_lite.storage.opendata.ids import Ids, Names
from zaqar_lite.storage.opendata.keys import RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.queues import Queues
from zaqar_lite.storage.opendata.records import (
    CLIENT_HEADER,
    QUEUE_HEADER,
    ClaimRecord,
    Metadata,
    Uri,
    decode_metadata,
    decode_payload,
    encode_attempts,
    encode_claim,
    encode_ended,
    encode_garbage,
    encode_headers,
    encode_posted,
    encode_remembered,
    encode_state,
)

logger = logging.getLogger(__name__)
PAYLOAD_PREFIX = keys.prefix(RecordType.PAYLOAD)
EMPTY_ACTIVE = encode_active((), ())
EMPTY_ENDED = encode_ended(())
GARBAGE_STEP = 1_000
_CACHED_BODIES = 16 * 1024 * 1024
_BODY_OVERHEAD = 150
_MAX_SUFFIXES = 10_000
_HOT_MESSAGES = 1_000_000
_HOT_SLACK = 32 * PAGE_SIZE


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
        self.shared: dict[int, int] = {}  # message id -> how many queues hold it, if more than one
        self.puts: dict[bytes, bytes] = {}
        self.deletes: dict[bytes, None] = {}
        self.touched: set[Queue] = set()
        self.written: Batch = Batch({}, ())
        self.written_touched: set[Queue] = set()
        self.committer = Committer(engine, self._take, self._recover)
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
        self._bodies: dict[int, bytes] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._bodies_size = 0
        self._bodies_limit = int(options.extra.get("payload_cache_bytes", _CACHED_BODIES))
        self.hot_limit = int(options.extra.get("messages_in_memory", _HOT_MESSAGES))
        self._users = 0
        self._opening = asyncio.Lock()

    # -- life --

    async def open(self) -> None:
        """Open the engine and load the state, for the first of the stores that opens."""
        from zaqar_lite.storage.opendata import loading  # noqa: PLC0415 - it needs this class

        async with self._opening:
            if self._users == 0:
                await self.engine.open()
                try:
                    await loading.load(self)
                except BaseException:
                    await self.engine.close()
                    raise
            self._users += 1

    async def close(self) -> None:
        """Finish what is under way and close the engine, for the last of the stores that closes."""
        async with self._opening:
            if self._users == 0:
                return
            self._users -= 1
            if self._users:
                return
            try:
                if self.touched or self.puts:
                    await self.committer.durable()
            except Unavailable as exc:
                logger.warning("closing without the last tidying: %s", exc)
            await self.committer.finish()
            await self.engine.close()

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

    def changed(self, queue: Queue) -> None:
        """Note that an operation changed a queue: its readers wait for the batch."""
        queue.epoch = self.committer.epoch
        self.touched.add(queue)

    def settle(self, queue: Queue, now: int) -> None:
        """Bring a queue up to now; what that changes is saved with the next batch."""
        queue.settle(now)
        if queue.removed or queue.changed_pages:
            self.touched.add(queue)

    def store(self, message_id: int, body: bytes, payload: bytes) -> None:
        """Put a payload into the batch and remember the body for those who will ask."""
        self.puts[PAYLOAD_PREFIX + message_id.to_bytes(8, "big")] = payload
        self.remember_body(message_id, body)

    def remember_body(self, message_id: int, body: bytes) -> None:
        """Keep a body in memory until others need the room."""
        size = len(body) + _BODY_OVERHEAD
        self._bodies[message_id] = body
        self._order.append((message_id, size))
        self._bodies_size += size
        while self._bodies_size > self._bodies_limit:
            oldest, size = self._order.popleft()
            self._bodies.pop(oldest, None)
            self._bodies_size -= size

    def log(
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

    def put_metadata(
        self, message_id: int, now: int, visible_at: int, ttl_ms: int, log: tuple[int, bytes]
    ) -> None:
        """Put a message's entry of the metadata log into the batch."""
        self.puts[self.log_prefix + var_u64(message_id - self.log_start)] = encode_posted(
            message_id, now, visible_at, -(-ttl_ms // 1000), log[0], log[1]
        )

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

    def remove_record(self, queue: Queue) -> None:
        """Remove a queue's record, and the empty records that were made with it."""
        if queue.record is not None:
            self.queues.set_record(queue, None)
            key = keys.queue_key(RecordType.CONFIG, queue.raw)
            self.puts.pop(key, None)
            self.deletes[key] = None

    # -- cold pages --

    async def prepare(self, queue: Queue, now: int, needed: Callable[[], list[Page]]) -> None:
        """Load what an operation needs and is cold; what holds expired messages is needed always.

        Afterwards nothing is, until the next await.
        """
        kept: set[Page] = set()  # or one page would be forgotten for the next, and so on for ever
        while queue.cold.count:
            queue.expire(now)
            pages = [*queue.due_pages, *needed()]
            queue.due_pages.clear()
            if not pages:
                return
            kept.update(pages)
            await self._load(queue, pages, kept)

    async def _load(self, queue: Queue, pages: Sequence[Page], kept: set[Page]) -> None:
        root = keys.queue_key(RecordType.ACTIVE, queue.raw)
        wanted = {
            root if page.number is None else root + page.number.to_bytes(8, "big"): page
            for page in pages
        }
        stored = await self.engine.get(list(wanted))
        for key, page in wanted.items():
            if not page.cold or queue.numbered.get(page.number) is not page:
                continue  # somebody else loaded or purged it meanwhile
            try:
                fields, _, _ = read_active(_readable(stored, key))
                queue.install(page, entries_of(page, fields))
            except CodecError as exc:
                logger.error("damaged: %s", exc)
                queue.install(page, {})
                queue.discard_page(page)
        if queue.total - queue.cold.count > self.hot_limit + _HOT_SLACK:
            self.cool(queue, all_pages=False, kept=kept)

    def cool(self, queue: Queue, *, all_pages: bool, kept: AbstractSet[Page] = frozenset()) -> None:
        """Keep a queue's part in memory about as large as it may be."""
        if queue.total - queue.cold.count <= self.hot_limit:
            return
        root = keys.queue_key(RecordType.ACTIVE, queue.raw)
        written = self.written.puts if self.committer.is_writing else {}

        def is_saved(page: Page) -> bool:
            number = page.number
            key = root if number is None else root + number.to_bytes(8, "big")
            return page not in kept and number not in queue.changed_pages and key not in written

        queue.cool(self.hot_limit, is_saved, all_pages=all_pages)

    async def all_ids(self, queue: Queue) -> dict[int | None, list[int]]:
        """The ids in the cold pages of a queue, by page, complete at the next step."""
        found: dict[int | None, list[int]] = {}
        root = keys.queue_key(RecordType.ACTIVE, queue.raw)
        while missing := [p for p in queue.pages if p.cold and p.number not in found][:64]:
            wanted = {
                root if page.number is None else root + page.number.to_bytes(8, "big"): page
                for page in missing
            }
            stored = await self.engine.get(list(wanted))
            for key, page in wanted.items():
                try:
                    found[page.number] = list(read_active(_readable(stored, key))[0][::5])
                except CodecError:
                    found[page.number] = []
        return found

    def purge(self, queue: Queue, cold_ids: Mapping[int | None, Sequence[int]]) -> None:
        """Remove all entries and claims; `cold_ids` is what `all_ids` answered just now."""
        gone = [
            message_id for page in queue.pages if page.cold for message_id in cold_ids[page.number]
        ]
        queue.clear()
        self.changed(queue)
        if gone:
            self._put_garbage(gone, self.puts)

    # -- bodies and metadata --

    async def fill(self, queue: Queue, entries: Sequence[Entry], messages: list[Message]) -> None:
        """Give messages the bodies of their entries, and what else is only in the log.

        A message that was deleted meanwhile leaves the list. One that can't be read is set aside:
        it is named in the log and never handed out again, and stays stored as it is.
        """
        if self._fill_from_memory(entries, messages):
            return
        stored = await self._read(entries)
        kept: list[Message] = []
        for entry, message in zip(entries, messages, strict=True):
            try:
                message.body = self._body_of(entry.id, stored)
                self._learn(entry, stored)
            except CodecError as exc:
                if queue.find(entry.position) is entry:
                    self.set_aside(queue, entry, str(exc))
                continue
            message.created_at, message.client_id = entry.created_at, entry.client_id
            message.headers = entry.headers
            message.ttl_ms = entry.ttl_ms or message.expires_at - entry.created_at
            kept.append(message)
        messages[:] = kept

    def _fill_from_memory(self, entries: Sequence[Entry], messages: list[Message]) -> bool:
        bodies = self._bodies
        for entry, message in zip(entries, messages, strict=True):
            body = bodies.get(entry.id)
            if body is None or entry.created_at == UNKNOWN:
                return False
            message.body = body
        return True

    async def warm(self, queue: Queue, entries: Iterable[Entry]) -> None:
        """Read the metadata of entries that do not have it yet."""
        cold = [entry for entry in entries if entry.created_at == UNKNOWN]
        stored = await self.engine.get([self.log_key(entry.id) for entry in cold])
        for entry in cold:
            try:
                self._learn(entry, stored)
            except CodecError as exc:
                if queue.find(entry.position) is entry:
                    self.set_aside(queue, entry, str(exc))

    async def _read(self, entries: Sequence[Entry]) -> dict[bytes, Stored]:
        wanted: list[bytes] = []
        ours: dict[bytes, Stored] = {}
        for entry in entries:
            if entry.id not in self._bodies:
                key = PAYLOAD_PREFIX + entry.id.to_bytes(8, "big")
                value = self.puts.get(key) or self.written.puts.get(key)
                if value is None:
                    wanted.append(key)
                else:
                    ours[key] = value
            else:
                key = PAYLOAD_PREFIX + entry.id.to_bytes(8, "big")
                ours[key] = b"\x03" + self._bodies[entry.id]
            if entry.created_at == UNKNOWN:
                wanted.append(self.log_key(entry.id))
        stored = await self.engine.get(wanted) if wanted else {}
        stored.update(ours)
        return stored

    def _body_of(self, message_id: int, stored: Mapping[bytes, Stored]) -> bytes:
        payload = decode_payload(
            _readable(stored, keys.message_key(RecordType.PAYLOAD, message_id))
        )
        if isinstance(payload, Uri):
            raise CodecError(f"the payload lies at {payload.uri}, which this server does not fetch")
        return payload

    def _learn(self, entry: Entry, stored: Mapping[bytes, Stored]) -> None:
        if entry.created_at == UNKNOWN:
            metadata = decode_metadata(_readable(stored, self.log_key(entry.id)))
            _, client_id, headers = split_headers(metadata)
            entry.learn(metadata, client_id, headers)

    def set_aside(self, queue: Queue, entry: Entry, why: str) -> None:
        """Never hand out an entry whose payload or metadata can't be read."""
        logger.error("message %s of %s is set aside: %s", entry.id, queue.ref, why)
        past = entry.remember()
        if past.damaged:
            return
        if entry.claim is not None:
            entry.claim.held.pop(entry.position, None)
            entry.claim = None
        elif entry.delayed:
            entry.delayed = False
            queue.delayed_count -= 1
        else:
            queue.ready_count -= 1
        past.damaged = True
        queue.changed_pages.add(entry.page.number)
        self.touched.add(queue)

    # -- the batch --

    def _take(self) -> Batch:
        """Encode everything that changed since the last batch."""
        puts, deletes, touched = self.puts, self.deletes, self.touched
        for queue in touched:
            self._encode(queue, puts, deletes)
        puts[keys.STATE] = encode_state(self.ids.next, self.clock.now_ms(), self.secret)
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self.written_touched = Batch(puts, list(deletes)), touched
        return self.written

    def _encode(self, queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]) -> None:
        if queue.removed:
            self._encode_removed(queue, puts, deletes)
        root = keys.queue_key(RecordType.ACTIVE, queue.raw)
        for number in queue.changed_pages:
            page = queue.numbered.get(number)
            if number is None:
                puts[root] = EMPTY_ACTIVE if page is None else page.encode()
                deletes.pop(root, None)
                continue
            key = root + number.to_bytes(8, "big")
            if page is None or not page.entries:
                deletes[key] = None
            else:
                puts[key] = page.encode()
                deletes.pop(key, None)
        queue.changed_pages.clear()
        self._encode_claims(queue, puts, deletes)
        if queue.keys.changed:
            self._encode_keys(queue, puts, deletes)
        for history in (queue.done, queue.failed):
            if history.changed:
                _encode_history(queue, history, puts, deletes)
        if queue.record is None and not queue.total and not queue.damaged_pages:
            for kind in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
                key = keys.queue_key(kind, queue.raw)
                if puts.pop(key, None) is not None or kind is not RecordType.ACTIVE:
                    deletes[key] = None

    @staticmethod
    def _encode_claims(queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]) -> None:
        for claim_id, claim in queue.changed_claims.items():
            key = keys.claim_key(queue.raw, bytes.fromhex(claim_id))
            if claim is None:
                puts.pop(key, None)
                deletes[key] = None
            else:
                ids = [entry.name for entry in claim.held.values()]
                puts[key] = encode_claim(
                    ClaimRecord(
                        claim.created_at, claim.ttl_ms, claim.grace_ms, claim.client_id, ids
                    )
                )
        queue.changed_claims.clear()
        for entry in queue.ended:
            past = entry.past
            if past is not None and queue.find(entry.position) is entry:
                key = keys.attempts_key(entry.id, queue.raw)
                puts[key] = encode_attempts(past.consumers)
                deletes.pop(key, None)
        queue.ended.clear()

    def _encode_removed(
        self, queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]
    ) -> None:
        gone: list[int] = []
        for entry in queue.removed:
            message_id = entry.id
            past = entry.past
            if past is not None:
                if past.shared and self._has_other_holder(message_id):
                    continue
                if past.consumers:
                    key = keys.attempts_key(message_id, queue.raw)
                    if key not in puts:  # a history that began in this batch needs it
                        deletes[key] = None
            gone.append(message_id)
        queue.removed.clear()
        if len(gone) > GARBAGE_STEP:
            self._put_garbage(gone, puts)
            return
        for message_id in gone:
            key = PAYLOAD_PREFIX + message_id.to_bytes(8, "big")
            puts.pop(key, None)
            deletes[key] = None
            deletes[self.log_key(message_id)] = None
            self._bodies.pop(message_id, None)

    def _has_other_holder(self, message_id: int) -> bool:
        """Count one holder less; tell whether another queue still holds the message."""
        holders = self.shared.get(message_id, 1) - 1
        if holders > 1:
            self.shared[message_id] = holders
        else:
            self.shared.pop(message_id, None)
        return holders > 0

    def _put_garbage(self, gone: Sequence[int], puts: dict[bytes, bytes]) -> None:
        """Leave the deleting of many messages to the sweep, in steps that survive a crash."""
        for start in range(0, len(gone), GARBAGE_STEP):
            step = gone[start : start + GARBAGE_STEP]
            key = keys.message_key(RecordType.GARBAGE, self.next_garbage)
            self.next_garbage += 1
            puts[key] = encode_garbage(step)
            self.garbage.append(key)

    @staticmethod
    def _encode_keys(queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]) -> None:
        prefix = keys.queue_key(RecordType.IDEMPOTENCY, queue.raw)
        for suffix in queue.keys.changed:
            known = queue.keys.get(suffix)
            if known is None:
                deletes[prefix + suffix] = None
                puts.pop(prefix + suffix, None)
            else:
                puts[prefix + suffix] = encode_remembered(*known)
                deletes.pop(prefix + suffix, None)
        queue.keys.changed.clear()

    async def _recover(self) -> None:
        """Bring every queue that a failed batch had changed back to what the engine holds."""
        from zaqar_lite.storage.opendata import loading  # noqa: PLC0415 - as in `open`

        touched = self.touched | self.written_touched
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self.written_touched = Batch({}, ()), set()
        self.ids.forget_stored()
        await loading.reload(self, [queue.ref for queue in touched])


def _encode_history(
    queue: Queue, history: History, puts: dict[bytes, bytes], deletes: dict[bytes, None]
) -> None:
    for number in history.changed:
        key = keys.queue_key(history.kind, queue.raw, number)
        if number == history.number and (history.tail or number is None):
            puts[key] = encode_ended(history.tail)
            deletes.pop(key, None)
        elif history.is_full(number):
            puts[key] = encode_ended(history.filled.pop(number))
        elif number is None:
            puts[key] = EMPTY_ENDED
        else:
            deletes[key] = None
    history.changed.clear()


def _readable(stored: Mapping[bytes, Stored], key: bytes) -> bytes:
    value = stored.get(key)
    if value is None:
        raise CodecError(f"{keys.describe(key)} is missing")
    if isinstance(value, Damage):
        raise CodecError(str(value))
    return value


def split_headers(metadata: Metadata) -> tuple[str | None, str | None, dict[str, str]]:
    """Split a metadata record's headers: the queue, the client, and the message's own."""
    headers = list(metadata.headers)
    queue = client_id = None
    if headers and headers[0][0] == QUEUE_HEADER:
        queue = headers.pop(0)[1]
    if headers and headers[0][0] == CLIENT_HEADER:
        client_id = headers.pop(0)[1]
    return queue, client_id, dict(headers)
