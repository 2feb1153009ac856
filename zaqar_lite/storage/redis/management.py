"""The management store: finds queue records by key, by name and by dead-letter queue."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.metadata import dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, Spent
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.keys import EVERYWHERE, keys_of, keys_of_project, ref_of
from zaqar_lite.storage.redis.kind_records import KindRecords
from zaqar_lite.storage.redis.limiter import FairTurns
from zaqar_lite.storage.redis.records import RecordIndexes, make_record

_NAMES_PER_STEP = 100
_RECORDS_PER_STEP = 20
"""Records that are read together: 1 ms for the event loop. Listings take turns with these steps."""


class RedisManagementStore(KindRecords):
    """Queue records in Redis, and other records beside them."""

    shares_rates = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._router = connection.router
        self._follow_ups = connection.follow_ups
        self._indexes = RecordIndexes(connection.router, connection.follow_ups)
        self._turns = FairTurns()

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; see the seam."""
        record = await self._indexes.read(queue)
        if record is not None:
            return record, False
        async with self._indexes.changing(queue):
            names = keys_of_project(queue.project)
            (status,) = await self._router.run(
                "enlist", names, queue.name, max_queues, repeatable=True
            )
            if status == b"full":
                raise too_many_queues(max_queues)
            status, *fields = await self._router.run(
                "create_queue",
                keys_of(queue),
                json.dumps(dict(metadata)),
            )
        return make_record(queue, fields), status == b"created"

    async def spend(self, project: str, spent: Sequence[Spent], seconds: float) -> Sequence[float]:
        """Take tokens from a project's buckets; see the seam."""
        words = [word for bucket, *numbers in spent for word in (bucket, *map(str, numbers))]
        _, *left = await self._router.run("spend", keys_of_project(project), str(seconds), *words)
        return [float(tokens) for tokens in left]

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record; see the seam."""
        return await self._indexes.read(queue)

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace a record at its version; see the seam."""
        metadata = json.dumps(dict(record.metadata))
        async with self._indexes.changing(record.queue):
            status, *version = await self._router.run(
                "update_queue",
                keys_of(record.queue),
                record.version,
                metadata,
                "1" if record.exposing else "",
            )
            if status == b"changed":
                raise queue_changed(record.queue)
        return QueueRecord(record.queue, json.loads(metadata), int(version[0]), record.exposing)

    async def delete_queue(self, queue: QueueRef, *, version: int) -> None:
        """Delete a record at its version; see the seam."""
        async with self._indexes.changing(queue):
            (status,) = await self._router.run(
                "delete_queue",
                keys_of(queue),
                version,
            )
            if status == b"changed":
                raise QueueChanged(f"The queue {queue.name!r} changed meanwhile.")

    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None = None,
        limit: int,
        name_contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sequence[QueueRecord]:
        """List a project's queues by name; see the seam."""
        keys = keys_of_project(project)
        after = "-" if marker is None else f"({marker}"
        found: list[QueueRecord] = []
        examined = 0
        step = _NAMES_PER_STEP if name_contains or metadata else min(limit, _NAMES_PER_STEP)
        while len(found) < limit and not (found and examined >= MAX_EXAMINED):
            names = await self._router.command(
                *(keys.slot, "ZRANGEBYLEX", keys.key("names"), after.encode()),
                *("+", "LIMIT", 0, step),
            )
            wanted = [name.decode() for name in names]
            found += await self._read_matching(
                [
                    QueueRef(project, n)
                    for n in wanted
                    if name_contains is None or name_contains in n
                ],
                metadata or {},
            )
            if len(names) < step:
                break
            examined += len(names)
            after = f"({wanted[-1]}"
        return found[:limit]

    async def _read_matching(
        self, refs: Sequence[QueueRef], metadata: Mapping[str, Any]
    ) -> list[QueueRecord]:
        """Read records in steps; leave out those that do not exist or have other metadata."""
        found: list[QueueRecord] = []
        for start in range(0, len(refs), _RECORDS_PER_STEP):
            step = refs[start : start + _RECORDS_PER_STEP]
            async with self._turns.turn(step[0].project):
                records = await asyncio.gather(*map(self._indexes.read, step))
            found += [
                one for one in records if one is not None and holds_all(one.metadata, metadata)
            ]
        return found

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        keys = keys_of_project(project)
        return int(await self._router.command(keys.slot, "ZCARD", keys.key("names")))

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue; see the seam."""
        keys = keys_of(target)
        sources: set[str] = set()
        cursor: bytes | int = 0
        while len(sources) < limit:
            cursor, names = await self._router.command(
                keys.slot, "SSCAN", keys.key("sources"), cursor, "COUNT", _NAMES_PER_STEP
            )
            records = await self._read_matching(
                [QueueRef(target.project, name.decode()) for name in names], {}
            )
            sources |= {
                record.queue.name
                for record in records
                if dead_letter_target(record.metadata) == target.name
            }
            if cursor == b"0":
                break
        return sorted(sources)[:limit]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        tags = await self._router.command(
            EVERYWHERE.slot, "ZRANGE", EVERYWHERE.key("exposing"), 0, limit - 1
        )
        records = await self._read_matching([ref_of(tag.decode()) for tag in tags], {})
        return [record for record in records if record.exposing]
