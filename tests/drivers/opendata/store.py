"""Both stores over one place of SlateDB's, and damages."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from tests.drivers.store import MINUTE, QUEUE, BothStores
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, HistoryEntry, HistoryState, QueueRef, StoreOptions
from zaqar_lite.storage.opendata import create
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.engine import Batch, Unreadable
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine
from zaqar_lite.storage.sql.records import SqlManagementStore


class Store(BothStores):
    """The two stores, their clock and their database."""

    lease = MINUTE
    mode = DelayMode.HONOUR
    db: Database

    def __init__(self, uri: str, clock: Clock | None = None) -> None:
        self.uri = uri
        self.clock = clock or Clock()
        self.damaged: set[bytes] = set()
        self._make()

    def _make(self) -> None:
        messages, management = create(self.uri, clock=self.clock, options=StoreOptions())
        assert isinstance(messages, OpenDataMessageStore)
        assert isinstance(management, SqlManagementStore)
        self.messages, self.management = messages, management
        assert isinstance(messages._db, Database)
        self.db = messages._db
        _damage(self.db.engine, self.damaged)

    async def restart_damaged(self, *damaged: bytes) -> None:
        """Let the disk lose these records between two servers, until they are written anew."""
        assert None not in [await self.db.engine.get(key) for key in damaged]
        self.damaged.update(damaged)
        await self.restart()

    async def restart_mended(self) -> None:
        """Give back what `restart_damaged` has taken."""
        self.damaged.clear()
        await self.restart()

    async def acknowledge(
        self, queue: QueueRef = QUEUE, *, limit: int = 20, client: str = "worker"
    ) -> int:
        claimed = await self.claim(limit, queue=queue, client=client)
        if claimed.claim_id is None:
            return 0
        ids = [message.id for message in claimed.messages]
        assert not await self.messages.delete(queue, ids, claim_ids=[claimed.claim_id])
        return len(ids)

    async def history(self, state: HistoryState, limit: int = 20) -> list[HistoryEntry]:
        found: list[HistoryEntry] = []
        marker = None
        while True:
            page = await self.messages.history(QUEUE, state, marker=marker, limit=limit)
            if not page.entries:
                return found
            found += page.entries
            marker = page.marker

    @property
    def next_id(self) -> int:
        """The id that the next message gets, at least."""
        return self.db._position + 1

    def log_key(self, number: int) -> bytes:
        """The key of a message's entry in the metadata log."""
        return self.db.log.key(number)

    async def put(self, puts: Mapping[bytes, bytes], *deletes: bytes) -> None:
        """Change records as another program does while no server runs, and start it again."""
        await self.db.engine.commit(Batch(puts, deletes))
        await self.restart()

    async def records(self, kind: RecordType) -> dict[bytes, bytes]:
        rows = self.db.engine.scan(keys.prefix(kind))
        return {key: value async for chunk in rows for key, value in chunk}


def _damage(engine: SlateDbEngine, damaged: set[bytes]) -> None:
    """Let an engine find these records damaged, as it does where a block's checksum is wrong."""
    get, scan, commit = engine.get, engine.scan, engine.commit

    async def get_seen(key: bytes) -> bytes | None:
        found = await get(key)
        if key in damaged and found is not None:
            raise Unreadable(key, "planted")
        return found

    async def scan_seen(prefix: bytes) -> AsyncIterator[Sequence[tuple[bytes, bytes]]]:
        async for rows in scan(prefix):
            for row in rows:
                if row[0] in damaged:
                    raise Unreadable(row[0], "planted", after=True)
                yield [row]

    async def commit_and_mend(batch: Batch) -> None:
        await commit(batch)
        damaged.difference_update(batch.puts, batch.deletes)

    for name, call in (("get", get_seen), ("scan", scan_seen), ("commit", commit_and_mend)):
        setattr(engine, name, call)


async def engine_in(directory: Path) -> SlateDbEngine:
    """An open SlateDB engine."""
    engine = SlateDbEngine.in_directory(directory / "slatedb")
    await engine.open()
    return engine


async def stored(directory: Path, records: dict[bytes, bytes]) -> None:
    """Store records in a directory."""
    engine = await engine_in(directory)
    await engine.commit(Batch(records, ()))
    await engine.close()


def flip_in_table(directory: Path, value: bytes) -> None:
    """Flip a byte of a value in the table of SlateDB that holds it."""
    tables = (directory / "slatedb" / "compacted").glob("*.sst")
    (table,) = [file for file in tables if value in file.read_bytes()]
    data = bytearray(table.read_bytes())
    data[data.index(value) + len(value) // 2] ^= 0xFF
    table.write_bytes(data)
