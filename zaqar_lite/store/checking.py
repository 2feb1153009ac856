"""Verifying a store: every record, and how payloads, metadata and queues fit together."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.engine import Damage, Unreadable
from zaqar_lite.storage.opendata.format import CodecError, active, bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.paging import walk
from zaqar_lite.storage.opendata.recovery import garbage_ids, unrouted_ids

_DECODERS: dict[RecordType, Callable[[bytes], Any]] = {
    RecordType.PAYLOAD: records.decode_payload,
    RecordType.ACTIVE: active.read_active,
    RecordType.DONE: records.decode_ended,
    RecordType.FAILED: records.decode_ended,
    RecordType.ATTEMPTS: records.decode_attempts,
    RecordType.ATTEMPT: records.decode_attempt,
    RecordType.CONFIG: bookkeeping.decode_config,
    RecordType.ID_BLOCK: bookkeeping.decode_block,
    RecordType.FORMAT: bytes,
    RecordType.CLAIM: records.decode_claim,
    RecordType.IDEMPOTENCY: bookkeeping.decode_keys,
    RecordType.STATE: bookkeeping.decode_state,
    RecordType.GARBAGE: bookkeeping.decode_garbage,
    RecordType.RECORD: bookkeeping.decode_record,
    RecordType.UNROUTED: bytes,
    RecordType.ADOPTED: bytes.hex,
    RecordType.GROUP: bytes,
}
_LOG_ENTRY = 0x10
_LOG_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _LOG_ENTRY: records.decode_metadata,
    0x20: bookkeeping.decode_block,
    0x30: bookkeeping.decode_segment,
}
"""By the byte behind the segment in the key; a listing's value is empty."""


@dataclass
class Findings:
    """What a check found: the problems, and how many records of each kind there are."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """One line for people."""
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{len(self.problems)} problems; records: {counted or 'none'}"


async def check(db: Database) -> Findings:
    """Verify checksums, encodings, and that payloads, metadata and queues fit together."""
    found = Findings()
    found.problems += db.engine.damages
    seen = _Seen()
    for start, end in keys.ranges():
        try:
            async for rows in db.engine.scan(start, end):
                for key, value in rows:
                    problem = _check_record(db, key, value, found.counts, seen)
                    if problem is not None:
                        found.problems.append(problem)
        except Unreadable as exc:
            found.problems.append(str(exc))
    garbage, unrouted = await garbage_ids(db), await unrouted_ids(db)
    held: dict[int, QueueRef] = {}
    known: set[bytes] = set()
    members: set[bytes] = set()
    async for queue, entry in walk(db):
        held[entry.id] = queue.ref
        if entry.extras is not None:
            history = entry.extras.history
            known.update(keys.attempt_key(history, kept.number) for kept in entry.extras.kept)
            if entry.extras.group is not None:
                members.add(keys.group_key(queue.raw, entry.extras.group, entry.position))
    for kind, ids in (("payload", seen.payloads), ("metadata", seen.metadata)):
        found.problems += [
            f"message {message_id} of {held[message_id]} has no {kind}"
            for message_id in held.keys() - ids
        ]
        lost = ids - held.keys() - garbage - unrouted
        found.problems += [f"{kind} of message {number}: no queue holds it" for number in lost]
    for wanted, stored in ((known, seen.attempts), (members, seen.groups)):
        found.problems += [f"{keys.describe(key)} is missing" for key in sorted(wanted - stored)]
        lost_keys = sorted(stored - wanted)
        found.problems += [f"{keys.describe(key)}: no message has it" for key in lost_keys]
    return found


@dataclass
class _Seen:
    """The messages with a payload or metadata, and the keys of attempts and of groups."""

    payloads: set[int] = field(default_factory=set)
    metadata: set[int] = field(default_factory=set)
    attempts: set[bytes] = field(default_factory=set)
    groups: set[bytes] = field(default_factory=set)


def _check_record(
    db: Database, key: bytes, value: bytes | Damage, counts: Counter[str], seen: _Seen
) -> str | None:
    """Count a record and note what it belongs to; answer what is wrong with it."""
    try:
        if key[:2] == keys.LOG:
            decode = _LOG_DECODERS.get(key[6], bytes)
            if key[6] == _LOG_ENTRY:
                segment, _, sequence = keys.read_log_entry_key(key)
                start = next(start for start, number in db.segments if number == segment)
                counts["metadata"] += 1
                seen.metadata.add(start + sequence)
        else:
            kind = RecordType(keys.read_prefix(key)[0])
            decode = _DECODERS[kind]
            counts[kind.name.lower().replace("_", " ")] += 1
            if kind is RecordType.PAYLOAD:
                seen.payloads.add(keys.read_message_id(key))
            elif kind is RecordType.ATTEMPT:
                seen.attempts.add(key)
            elif kind is RecordType.GROUP:
                seen.groups.add(key)
        if isinstance(value, Damage):
            return str(value)
        decode(value)
    except (CodecError, ValueError, IndexError, StopIteration) as exc:
        return f"{keys.describe(key)}: {exc}"
    return None
