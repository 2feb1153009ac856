"""Queue records and other records in memory."""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.storage.memory.state import State
from zaqar_lite.storage.record_store import RecordStore


class MemoryManagementStore(RecordStore):
    """The reference management store."""

    def __init__(self, shared: State, clock: Clock) -> None:
        super().__init__(shared.records, shared.catalogue, clock)
        self._state = shared

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the state goes with the stores."""

    async def ping(self) -> None:
        """Do nothing: the store always answers."""

    def _next_version(self) -> int:
        return self._state.next_version(self._clock.now_us())

    def _put_queue(self, record: QueueRecord) -> None:
        self._queues.put(record)

    def _delete_queue(self, ref: QueueRef) -> None:
        self._queues.remove(ref)

    def _put_record(self, record: Record) -> None:
        self._catalogue.put(record)

    def _delete_record(self, record: Record) -> None:
        self._catalogue.remove(record.kind, record.project, record.name)
