"""Queue records of the embedded store: in memory, with RFC 0001's configuration as checkpoint."""

from collections.abc import Iterable

from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.storage.opendata.checkpoint import EMPTY_ACTIVE, EMPTY_ENDED
from zaqar_lite.storage.opendata.database import Database, DatabaseUser
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import encode_queue_record
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.record_store import RecordStore


class OpenDataManagementStore(DatabaseUser, RecordStore):
    """The management store over RFC 0001's records."""

    def __init__(self, db: Database) -> None:
        DatabaseUser.__init__(self, db)
        RecordStore.__init__(self, db.queues.records, db.catalogue, db.clock)

    def _check_readable(self) -> None:
        self._db.committer.check_readable()

    def _check_writable(self) -> None:
        self._db.committer.check_writable()

    async def _queues_visible(self, refs: Iterable[QueueRef]) -> None:
        db = self._db
        await db.committer.visible(max(map(db.queues.epoch, refs), default=0))

    async def _records_visible(self) -> None:
        await self._db.committer.visible(self._db.catalogue.epoch)

    async def _durable(self) -> None:
        await self._db.committer.durable()

    def _next_version(self) -> int:
        return self._db.ids.take(1, self._db.puts)

    def _put_queue(self, record: QueueRecord) -> None:
        """Store a queue's record; a new queue gets the root of each of its lists, as in the RFC."""
        db, config = self._db, encode_queue_record(record)
        is_new = db.queues.records.get(record.queue) is None
        queue = db.queues.make(record.queue)
        db.put_queue(queue, record, config)
        if not is_new:
            return
        if None not in queue.numbered and None not in queue.damaged_pages:
            db.puts[keys.queue_key(RecordType.ACTIVE, queue.raw)] = EMPTY_ACTIVE
        for history in (queue.done, queue.failed):
            if not history:
                db.put(keys.queue_key(history.kind, queue.raw), EMPTY_ENDED)

    def _delete_queue(self, ref: QueueRef) -> None:
        queue = self._db.queues.make(ref)
        self._db.remove_record(queue)
        self._db.changed(queue)

    def _put_record(self, record: Record) -> None:
        self._db.put_record(record)

    def _delete_record(self, record: Record) -> None:
        self._db.delete_record(record)
