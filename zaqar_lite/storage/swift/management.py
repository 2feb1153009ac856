"""The management store: records of queues, and of any other kind, under a lock when one is changed.

A queue's record is under its queue's lock (`backend.py`). Any other one has a lock of its own, and
each kind a container, in which an object's name sorts as (project, name) does. The content type
tells what is asked of many at once: `v` version, `e` expires at, `gone` for what was deleted. Such
a tombstone, and what has expired, is removed by Swift minutes later, when every clock is past its
version, so that versions grow over deletions. The listing proposes and the object decides.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

from zaqar_lite.domain.errors import RecordChanged, Unavailable
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record, RecordBound
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.store import Connected
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together

_SEPARATOR = "!!"
_MAX_NAME, _CUT_BYTES = 1_024, 900
_place = attrgetter("project", "name")
T = TypeVar("T")


class _State(NamedTuple):
    """What a content type tells."""

    version: int = 0
    expires_at: int | None = None
    gone: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        found = layout.parameters(text)
        return cls(
            int(found.get("v", 0)), int(found["e"]) if "e" in found else None, "gone" in found
        )

    def content_type(self) -> str:
        return layout.content_type(
            "record", v=self.version, e=self.expires_at or 0, gone=int(self.gone)
        )

    def is_live(self, now: int) -> bool:
        """Whether readers may see it."""
        is_over = self.expires_at is not None and self.expires_at <= now
        return self.version > 0 and not self.gone and not is_over


class SwiftManagementStore(Connected[Backend], ManagementStore):
    """Records as objects."""

    expires_alone = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._records = backend.records
        self._objects = backend.objects
        self._last_version = 0

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; see the seam."""
        known = await self._records.get(queue)
        if known is not None:
            return known, False

        async def create(lease: Lease) -> tuple[QueueRecord, bool]:
            record = await self._records.get(queue)
            if record is not None:
                return record, False
            if await self._records.count(queue.project) >= max_queues:
                raise too_many_queues(max_queues)
            return await self._records.put(QueueRecord(queue, metadata, 0), lease), True

        project = self._connection.containers.project(queue.project)
        return await self._connection.locked(queue, create, within=project)

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record; see the seam."""
        return await self._records.get(queue)

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace a record at its version; see the seam."""

        async def update(lease: Lease) -> QueueRecord:
            stored = await self._records.get(record.queue)
            if stored is None or stored.version != record.version:
                raise queue_changed(record.queue)
            container = self._connection.containers.queue(record.queue)
            await self._connection.tails.note_version(container, 0, lease)
            changed = await self._records.put(record, lease)
            with suppress(Unavailable):  # then it is read from the record
                await self._connection.tails.note_version(container, changed.version, lease)
            return changed

        return await self._connection.locked(record.queue, update)

    async def delete_queue(self, queue: QueueRef, *, version: int) -> None:
        """Delete a record at its version; see the seam."""

        async def delete(lease: Lease) -> None:
            stored = await self._records.get(queue)
            if stored is None:
                return
            if stored.version != version:
                raise queue_changed(queue)
            container = self._connection.containers.queue(queue)
            await self._connection.tails.note_version(container, 0, lease)
            await self._records.remove(queue, lease)

        await self._connection.locked(queue, delete)

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
        found: list[QueueRecord] = []
        waiting: list[QueueRef] = []

        async def fetch() -> None:
            records = await together(*(self._records.get(queue) for queue in waiting))
            found.extend(
                r for r in records if r is not None and holds_all(r.metadata, metadata or {})
            )
            waiting.clear()

        async for name, _ in self._records.names(project, after=marker, first=limit):
            if name_contains is None or name_contains in name:
                waiting.append(QueueRef(project, name))
            if len(waiting) >= limit:
                await fetch()
                if len(found) >= limit:
                    return found[:limit]
        await fetch()
        return found[:limit]

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        return await self._records.count(project)

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue, from the listing; see the seam."""
        found: list[str] = []
        async for name, dead_letter_queue in self._records.names(target.project):
            if dead_letter_queue == target.name:
                found.append(name)
            if len(found) == limit:
                break
        return found

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        return await self._records.exposing(limit)

    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        *,
        expected: int | None,
        ttl_ms: int | None = None,
        bounds: Sequence[RecordBound] = (),
    ) -> Record:
        """Write a record at its expected version; see the seam."""
        container, key = self._connection.containers.kind(kind), object_name(project, name)

        async def work(lease: Lease) -> Record:
            stored = await self._state(container, key)
            self._check(stored, kind, name, expected)
            for bound in bounds if not stored.is_live(self._now()) else ():
                if await self._is_full(container, project, bound):
                    raise bound.reached
            clock = self._connection.clock
            version = max(stored.version, self._last_version, clock.now_us() - 1) + 1
            self._last_version = version
            expires_at = None if ttl_ms is None else clock.now_ms() + ttl_ms
            state = _State(version, expires_at).content_type()
            head = json.dumps([project, name]).encode()
            content = head + b"\n" + value
            await self._objects.put(container, key, state, content, lease, ends=expires_at)
            return Record(kind, project, name, value, version, expires_at)

        place = "" if any(bound.of_server for bound in bounds) else project
        within = _lock(container, f"/{place}") if bounds else None
        return await self._connection.locked(_lock(container, key), work, within=within)

    async def _is_full(self, container: str, project: str, bound: RecordBound) -> bool:
        """Whether there are as many records as a bound allows, by the listing."""
        prefix = "" if bound.of_server else _cut(object_name(project, bound.prefix))
        count, now = 0, self._now()
        async for page in self._objects.pages(container, prefix=prefix, first=bound.most + 1):
            count += sum(_State.parse(one.content_type).is_live(now) for one in page)
            if count >= bound.most:
                return True
        return count >= bound.most

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        """Read a live record in its newest version; see the seam."""
        container = self._connection.containers.kind(kind)
        return await self._fetch(kind, container, object_name(project, name))

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        """Turn a record into a tombstone; see the seam."""
        container, key = self._connection.containers.kind(kind), object_name(project, name)

        async def work(lease: Lease) -> bool:
            stored = await self._state(container, key)
            if not stored.is_live(self._now()):
                return False
            self._check(stored, kind, name, expected)
            ends = self._now()
            state = _State(stored.version, ends, gone=True).content_type()
            return await self._objects.mark(container, key, state, lease, ends=ends)

        return await self._connection.locked(_lock(container, key), work)

    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        """List live records, page by page; see the seam."""
        container = self._connection.containers.kind(kind)
        marker = "" if after is None else _group(object_name(*after))
        prefix = "" if project is None else _cut(_escaped(project) + _SEPARATOR)
        found: list[Record] = []
        names: list[str] = []

        async def fetch(count: int) -> None:
            step = (self._fetch(kind, container, each) for each in names[:count])
            records = [record for record in await together(*step) if record is not None]
            found.extend(
                record
                for record in sorted(records, key=_place)
                if project in {None, record.project} and (after is None or _place(record) > after)
            )
            del names[:count]

        first = limit + 1
        async for page in self._objects.pages(container, after=marker, prefix=prefix, first=first):
            now = self._now()
            names += [e.name for e in page if _State.parse(e.content_type).is_live(now)]
            while len(found) < limit and (count := _whole_groups(names, limit - len(found))):
                await fetch(count)
            if len(found) >= limit:
                return found[:limit]
        await fetch(len(names))
        return found[:limit]

    async def sweep_records(self, limit: int) -> int:
        """Remove nothing: what has expired goes by X-Delete-At; see the seam."""
        return 0

    async def _state(self, container: str, key: str) -> _State:
        reply = await self._objects.head(container, key)
        return _State.parse(reply.headers["Content-Type"]) if reply.found else _State()

    async def _fetch(self, kind: str, container: str, key: str) -> Record | None:
        reply = await self._objects.get(container, key)
        if not reply.found:
            return None
        state = _State.parse(reply.headers["Content-Type"])
        if not state.is_live(self._now()):
            return None
        head, _, value = reply.body.partition(b"\n")
        project, name = json.loads(head)
        return Record(kind, project, name, value, state.version, state.expires_at)

    def _check(self, stored: _State, kind: str, name: str, expected: int | None) -> None:
        """Compare the version that a writer has seen; 0 stands for no record."""
        version = stored.version if stored.is_live(self._now()) else 0
        if expected is not None and expected != version:
            raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")

    def _now(self) -> int:
        return self._connection.clock.now_ms()


def _lock(container: str, key: str) -> str:
    """The name of the lock of a record, or of a bound's place."""
    return f"{container}={sha256(key.encode()).hexdigest()[:32]}"


def object_name(project: str, name: str) -> str:
    """The name of a record's object: it sorts as (project, name), up to a length.

    A name that would be too long for Swift is cut, and ends with a hash that tells it from others.
    Names that begin alike up to the cut are a group: lists sort it by what the objects tell.
    """
    whole = f"{_escaped(project)}{_SEPARATOR}{_escaped(name)}"
    if len(whole.encode()) <= _MAX_NAME:
        return whole
    return f"{_cut(whole)}!~{sha256(whole.encode()).hexdigest()}"


def _escaped(text: str) -> str:
    """Write what is below a digit as ! and two hex digits: no dot, no slash, and the same order."""
    return "".join(sign if sign >= "0" else f"!{ord(sign):02x}" for sign in text)


def _cut(text: str) -> str:
    """The beginning of a name, in whole characters."""
    return text.encode()[:_CUT_BYTES].decode(errors="ignore")


def _group(name: str) -> str:
    """The beginning that the names of a group share; a name that is not longer is a group alone.

    It is 3 bytes shorter than a cut name may be, because a name is cut between characters.
    """
    return name.encode()[: _CUT_BYTES - 3].decode(errors="ignore")


def _whole_groups(names: Sequence[str], count: int) -> int:
    """How many of the first names to read: at least `count`, and whole groups only.

    0 where the last group may go on in names that are not listed yet.
    """
    while 0 < count < len(names) and _group(names[count]) == _group(names[count - 1]):
        count += 1
    return count if count < len(names) else 0
