"""Both stores over one directory, with what the tests of the SlateDB store do most."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.histories import HistoryEntry, HistoryState
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    DeadLetter,
    DelayMode,
    ListQuery,
    Message,
    QueueRef,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata import create
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.engine import Batch, Damage, Row
from zaqar_lite.storage.opendata.format import after_prefix, keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.opendata.recorder import log_key
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine
from zaqar_lite.storage.sql.records import SqlManagementStore

QUEUE, OTHER, THIRD = (QueueRef("project", name) for name in ("queue", "other", "third"))
MINUTE, HOUR = 60_000, 3_600_000


class Store:
    """The two stores, their clock and their database."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.clock = Clock()
        self.passed = 0
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

    async def restart(self) -> None:
        await self.messages.close()
        self._make()
        await self.messages.open()

    async def restart_damaged(self, *damaged: bytes) -> None:
        """Let the disk lose these records between two servers, until they are written anew."""
        assert len(await self.db.engine.get(damaged)) == len(damaged)
        self.damaged.update(damaged)
        await self.restart()

    async def restart_mended(self) -> None:
        """Give back what `restart_damaged` has taken."""
        self.damaged.clear()
        await self.restart()

    async def post(self, *new: str | NewMessage, to: QueueRef = QUEUE) -> list[str]:
        made = [
            NewMessage(json.dumps(item).encode(), HOUR) if isinstance(item, str) else item
            for item in new
        ]
        posted = await self.messages.post(to, made, client_id="producer", version=None)
        return [answer.id for answer in posted]

    async def claim(
        self,
        limit: int = 20,
        *,
        queue: QueueRef = QUEUE,
        client: str = "worker",
        letters: DeadLetter | None = None,
    ) -> Claimed:
        return await self.messages.claim(
            queue,
            ClaimRequest(
                limit=limit,
                ttl_ms=MINUTE,
                grace_ms=MINUTE,
                client_id=client,
                delay_mode=DelayMode.HONOUR,
                retries=RetryPolicy(letters),
                version=None,
            ),
        )

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

    async def sweep(self) -> None:
        for _ in range(50):
            if not (await self.messages.sweep(1_000)).total:
                return
        raise AssertionError("sweeping does not end")

    @property
    def next_id(self) -> int:
        """The id that the next message gets, at least."""
        return self.db._position + 1

    @property
    def first_of_log(self) -> int:
        """The first sequence of the log's first segment."""
        return self.db.segments[0][0]

    def log_key(self, number: int) -> bytes:
        """The key of a message's entry in the metadata log."""
        return log_key(self.db.segments, number)

    async def put(self, puts: Mapping[bytes, bytes], *deletes: bytes) -> None:
        """Change records as another program does while no server runs, and start it again."""
        await self.db.engine.commit(Batch(puts, deletes))
        await self.restart()

    async def records(self, kind: RecordType) -> dict[bytes, bytes]:
        prefix = keys.prefix(kind)
        found = {}
        async for rows in self.db.engine.scan(prefix, after_prefix(prefix)):
            for key, value in rows:
                found[key] = value if isinstance(value, bytes) else b"damaged"
        return found


def _damage(engine: SlateDbEngine, damaged: set[bytes]) -> None:
    """Let an engine find these records damaged, as it does where a block's checksum is wrong."""
    get, scan, commit = engine.get, engine.scan, engine.commit

    def seen(row: Row) -> Row:
        return (row[0], Damage(row[0], "planted")) if row[0] in damaged else row

    async def get_seen(wanted: Sequence[bytes]) -> dict[bytes, bytes | Damage]:
        return dict(map(seen, (await get(wanted)).items()))

    async def scan_seen(start: bytes, end: bytes) -> AsyncIterator[Sequence[Row]]:
        async for rows in scan(start, end):
            yield [seen(row) for row in rows]

    async def commit_and_mend(batch: Batch) -> None:
        await commit(batch)
        damaged.difference_update(batch.puts, batch.deletes)

    for name, call in (("get", get_seen), ("scan", scan_seen), ("commit", commit_and_mend)):
        setattr(engine, name, call)


def texts(messages: Claimed | list[Message]) -> list[str]:
    """The bodies, decoded."""
    found = messages.messages if isinstance(messages, Claimed) else messages
    return [json.loads(message.body) for message in found]


async def engine_in(directory: Path) -> SlateDbEngine:
    """An open SlateDB engine."""
    engine = SlateDbEngine.in_directory(directory / "slatedb")
    await engine.open()
    return engine


async def listed(store: Store, queue: QueueRef = QUEUE) -> list[str]:
    """The bodies of all messages of a queue, in order."""
    found: list[str] = []
    marker = None
    while True:
        page = await store.messages.list_messages(
            queue, ListQuery(marker=marker, limit=1_000, include_claimed=True, include_delayed=True)
        )
        if not page.messages:
            return found
        found += texts(list(page.messages))
        marker = None if page.marker is None else Marker(page.marker)


def flip_in_table(directory: Path, value: bytes) -> None:
    """Flip a byte of a value in the table of SlateDB that holds it."""
    tables = (directory / "slatedb" / "compacted").glob("*.sst")
    (table,) = [file for file in tables if value in file.read_bytes()]
    data = bytearray(table.read_bytes())
    data[data.index(value) + len(value) // 2] ^= 0xFF
    table.write_bytes(data)
