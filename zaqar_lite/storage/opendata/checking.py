"""Verify a store record by record, and print its records for people."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.engine import Damage, Engine, Row, Unreadable
from zaqar_lite.storage.opendata.format import active, bookkeeping, configuration, keys, records
from zaqar_lite.storage.opendata.format.encoding import CodecError
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
    RecordType.CONFIG: configuration.decode_config,
    RecordType.ID_BLOCK: bookkeeping.decode_block,
    RecordType.FORMAT: bytes,
    RecordType.CLAIM: records.decode_claim,
    RecordType.IDEMPOTENCY: bookkeeping.decode_remembered,
    RecordType.STATE: bookkeeping.decode_state,
    RecordType.GARBAGE: bookkeeping.decode_garbage,
    RecordType.RECORD: bookkeeping.decode_record,
    RecordType.UNROUTED: bytes,
    RecordType.ADOPTED: bytes.hex,
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
    payloads: set[int] = set()
    logged: set[int] = set()
    recorded: set[bytes] = set()
    async for row in _rows(db.engine):
        if isinstance(row, Unreadable):
            found.problems.append(str(row))
            continue
        key, value = row
        problem = _check_record(db, key, value, found.counts, payloads, logged)
        if key.startswith(keys.ATTEMPT_PREFIX):
            recorded.add(key)
        if problem is not None:
            found.problems.append(problem)
    garbage, unrouted = await garbage_ids(db), await unrouted_ids(db)
    held: dict[int, QueueRef] = {}
    known: set[bytes] = set()
    async for queue, entry in walk(db):
        held[entry.id] = queue.ref
        if entry.past is not None:
            history = entry.past.history
            known.update(keys.attempt_key(history, kept.number) for kept in entry.past.kept)
    for message_id, ref in held.items():
        for kind, there in (("payload", payloads), ("metadata", logged)):
            if message_id not in there:
                found.problems.append(f"message {message_id} of {ref} has no {kind}")
    for kind, there in (("payload", payloads), ("metadata", logged)):
        lost = there - held.keys() - garbage - unrouted
        found.problems += [f"{kind} of message {number}: no queue holds it" for number in lost]
    found.problems += [f"{keys.describe(key)} is missing" for key in sorted(known - recorded)]
    lost_keys = sorted(recorded - known)
    found.problems += [f"{keys.describe(key)}: no message has it" for key in lost_keys]
    return found


def _check_record(  # noqa: PLR0917 - what one pass collects
    db: Database,
    key: bytes,
    value: bytes | Damage,
    counts: Counter[str],
    payloads: set[int],
    logged: set[int],
) -> str | None:
    try:
        if key[:2] == keys.LOG:
            if key[6] == _LOG_ENTRY:
                segment, _, sequence = keys.read_log_entry_key(key)
                start = next(start for start, number in db.segments if number == segment)
                counts["metadata"] += 1
                logged.add(start + sequence)
            if isinstance(value, Damage):
                return str(value)
            _LOG_DECODERS.get(key[6], bytes)(value)
            return None
        kind = RecordType(keys.read_prefix(key)[0])
        counts[kind.name.lower().replace("_", " ")] += 1
        if kind is RecordType.PAYLOAD:
            payloads.add(keys.read_message_id(key))
        if isinstance(value, Damage):
            return str(value)
        _DECODERS[kind](value)
    except (CodecError, ValueError, IndexError, StopIteration) as exc:
        return f"{keys.describe(key)}: {exc}"
    return None


async def _rows(engine: Engine) -> AsyncIterator[Row | Unreadable]:
    """All records, type by type; what can't be read of a type stands at its end."""
    for start, end in keys.ranges():
        try:
            async for rows in engine.scan(start, end):
                for row in rows:
                    yield row
        except Unreadable as exc:
            yield exc


async def dump(engine: Engine) -> AsyncIterator[str]:
    """Describe every record in a line; bodies are shown, the store's secret is not."""
    async for row in _rows(engine):
        if isinstance(row, Unreadable):
            yield f"DAMAGED: {row}"
        elif isinstance(row[1], Damage):
            yield f"DAMAGED: {row[1]}"
        else:
            yield f"{keys.describe(row[0])} = {_show(row[0], row[1])}"


def _show(key: bytes, value: bytes) -> str:
    try:
        if key[:2] == keys.LOG:
            return repr(_LOG_DECODERS.get(key[6], bytes)(value))
        kind = RecordType(keys.read_prefix(key)[0])
        if kind is RecordType.STATE:
            return repr(bookkeeping.decode_state(value)._replace(secret=b"hidden"))
        return repr(_DECODERS[kind](value))
    except (CodecError, ValueError, IndexError) as exc:
        return f"UNREADABLE: {exc}: {value.hex()}"
