"""Records of any kind but queues: one slot for each kind, one script for each operation.

A kind has the keys `zl:<name>:{*kind:<kind>}`: `values`, `fields` (the order), `ends` (what
expires) and `counters`. A field is project and name, with a zero byte between them. That byte sorts
below everything that a name may contain, so the order of bytes is that of (project, name). As for
queues, a separate index says which kinds the sweep must look at, and when.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from zaqar_lite.domain.errors import RecordChanged, Unavailable
from zaqar_lite.domain.models import Record, RecordBound
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.redis.connection import Connection, FollowUps
from zaqar_lite.storage.redis.faults import Fault
from zaqar_lite.storage.redis.keys import Keys, encode
from zaqar_lite.storage.redis.router import Router
from zaqar_lite.storage.redis.sweeper import LATER_MS
from zaqar_lite.storage.store import Connected

logger = logging.getLogger(__name__)
_ALL_KINDS = Keys("*kinds", "everywhere")
_KINDS_PER_STEP = 100
_BETWEEN = b"\0\0"
_BEHIND = b"\0\1"


@lru_cache(maxsize=1_000)
def _keys_of(kind: str) -> Keys:
    return Keys(f"*kind:{encode(kind)}", "kind")


def _project(project: str) -> bytes:
    return project.encode("utf-8", "surrogatepass").replace(b"\0", _BEHIND)


def _field(project: str, name: str) -> bytes:
    return _project(project) + _BETWEEN + name.encode("utf-8", "surrogatepass")


def _record(kind: str, field: bytes, stored: bytes) -> Record:
    project, _, name = field.partition(_BETWEEN)
    expires_at = int.from_bytes(stored[8:14], "big")
    return Record(
        kind,
        project.replace(_BEHIND, b"\0").decode("utf-8", "surrogatepass"),
        name.decode("utf-8", "surrogatepass"),
        stored[14:],
        int.from_bytes(stored[:8], "big"),
        expires_at or None,
    )


class KindRecords(Connected[Connection], ManagementStore):
    """The part of the management store that writes, reads, lists and sweeps records."""

    _router: Router
    _follow_ups: FollowUps

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
        status, *rest = await self._run(
            "put_record",
            kind,
            _field(project, name),
            "" if expected is None else expected,
            "" if ttl_ms is None else ttl_ms,
            value,
            *(word for bound in bounds for word in (*_within(project, bound), bound.most)),
        )
        if status == b"full":
            raise bounds[rest[0]].reached
        _check(status, kind, name)
        version, expires_at = rest
        if expires_at:
            register = self._router.run(
                "register", _ALL_KINDS, _keys_of(kind).tag, expires_at, repeatable=True
            )
            await self._follow_ups.run(register)
        return Record(kind, project, name, value, version, expires_at or None)

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        """Read a live record; see the seam."""
        field = _field(project, name)
        _, stored = await self._run("get_record", kind, field, repeatable=True)
        return _record(kind, field, stored) if stored else None

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        """Delete a record; see the seam."""
        status, *found = await self._run(
            "delete_record", kind, _field(project, name), "" if expected is None else expected
        )
        _check(status, kind, name)
        return bool(found[0])

    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        """List live records in bounded steps; see the seam."""
        low, high = b"-", b"+"
        if project is not None:
            high = b"(" + _project(project) + _BEHIND
            after = max(after or (project, ""), (project, ""))
        if after is not None:
            low = b"(" + _field(*after)
        found: list[Record] = []
        while len(found) < limit:
            last, at_end, *rows = await self._run(
                "list_records", kind, low, high, limit - len(found), repeatable=True
            )
            found += [
                _record(kind, field, stored)
                for field, stored in zip(rows[::2], rows[1::2], strict=True)
            ]
            if at_end:
                break
            low = b"(" + last
        return found

    async def sweep_records(self, limit: int) -> int:
        """Remove expired records of the kinds that are due; see the seam."""
        now, visits = await self._router.run("visits", _ALL_KINDS, _KINDS_PER_STEP, repeatable=True)
        removed = 0
        for tag, score in zip(visits[::2], visits[1::2], strict=True):
            if removed >= limit:
                break
            try:
                count, following = await self._router.run(
                    "sweep_records", Keys(tag.decode(), "kind"), limit - removed
                )
            except (Unavailable, Fault) as exc:
                logger.warning("the sweep passes a kind of records over: %s", exc)
                count, following = 0, now + LATER_MS
            await self._router.run("reschedule", _ALL_KINDS, tag, score, following)
            removed += int(count)
        return removed

    async def _run(
        self, script: str, kind: str, *words: str | bytes | int, repeatable: bool = False
    ) -> Any:  # noqa: ANN401 - a reply is what the script made it
        return await self._router.run(script, _keys_of(kind), *words, repeatable=repeatable)


def _within(project: str, bound: RecordBound) -> tuple[bytes, bytes]:
    """The fields that a bound counts, as ZLEXCOUNT takes their ends."""
    if bound.of_server:
        return b"-", b"+"
    if not bound.prefix:
        return b"[" + _project(project) + _BETWEEN, b"(" + _project(project) + _BEHIND
    first = _field(project, bound.prefix)
    return b"[" + first, b"(" + first + b"\xff"


def _check(status: bytes, kind: str, name: str) -> None:
    if status == b"changed":
        raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")
