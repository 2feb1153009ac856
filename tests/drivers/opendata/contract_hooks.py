"""After every contract test: the records say exactly what the tables say, and nothing is left."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import apsw

from tests.contract.stores import Stores
from zaqar_lite.storage.opendata.database import Beside, Database
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import Loading, read_own
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore

_QUESTIONS = {
    # A wait that is over, which nothing has met yet, is over after a start.
    "messages": """SELECT project, name, position, e.id, CASE
          WHEN e.state = 1 AND due <= ?1 THEN 0 WHEN e.state = 3 AND until <= ?1 THEN 0
          ELSE e.state END AS state, priority, due,
        CASE WHEN e.state = 2 OR (e.state = 3 AND until > ?1) THEN until END, expires, ttl, created,
        claims, e.failures, claim, CASE WHEN e.state = 2 THEN claimed_at END,
        CASE WHEN e.state <> 2 THEN last_end END, e.body, is_shared, moved, has_attempts, client,
        headers, message_group, origin, b.body, holders, a.attempts, a.clients
        FROM entry e JOIN queue ON content = queue JOIN body b ON b.number = e.body
        LEFT JOIN attempts a ON e.has_attempts AND a.id = e.id ORDER BY 1, 2, 3""",
    "claims": """SELECT project, name, c.id, client, started, ttl, held, (
          SELECT group_concat(position) FROM (SELECT position FROM entry e WHERE e.queue = c.queue
          AND e.state = 2 AND e.claim = c.id ORDER BY position))
        FROM claim c JOIN queue ON content = queue ORDER BY 3""",
    "keys": """SELECT project, name, kind, key, ends, digest, ids FROM idempotency
        JOIN queue ON number = queue ORDER BY 1, 2, 3, 4""",
    "histories": """SELECT project, name, h.state, h.id, h.ended, attempts, consumers FROM history h
        JOIN queue q ON q.number = queue ORDER BY 1, 2, 3, h.number""",
    "queues": """SELECT project, name, version, metadata, exposing, has_filter, dead_letter_queue
        FROM queue WHERE version > 0 ORDER BY 1, 2""",
    "counts": """SELECT project, name, delayed + parked + ready, leased, keys, ended FROM queue
        WHERE ready + delayed + parked + leased + keys + ended > 0 ORDER BY 1, 2""",
    "projects": "SELECT name, queues FROM project ORDER BY 1",
    "records": "SELECT * FROM record ORDER BY 1, 2, 3",
    "unrouted": "SELECT * FROM unrouted ORDER BY 1, 2",
}


async def after_test(stores: Stores) -> None:
    """Fill tables from the records beside the store under test, and compare."""
    assert isinstance(stores.messages, OpenDataMessageStore)
    db = stores.messages._db
    assert isinstance(db, Database)
    if db._users:  # the test may have closed it
        await check_database(db)


async def check_database(db: Database) -> None:
    """Compare the tables with what a restart would make of the records."""
    await db.write(_write_queues)
    anew = Beside().open()
    loading = Loading(db.engine, anew, db.clock, await read_own(db.engine, db.clock))
    await loading.read()
    await loading.finish()
    try:
        assert not loading.unreadable
        now = db.clock.now_ms()
        assert snapshot(anew, now) == snapshot(db.connection, now)
        assert loading.own.ids.secret == db.ids.secret
        assert loading.own.block_end > db._position
        await _check_nothing_is_left(db)
    finally:
        anew.close()


def _write_queues(db: Any) -> None:
    db.write_queues()


def snapshot(connection: apsw.Connection, now: int) -> dict[str, list[Any]]:
    """What is in the tables, without their own numbers."""
    found: dict[str, list[Any]] = {}
    for name, question in _QUESTIONS.items():
        values = (now,) if "?1" in question else ()
        found[name] = [_plain(row) for row in connection.execute(question, values)]
    return found


def _plain(row: Sequence[Any]) -> list[Any]:
    return [_decoded(one) for one in row]


def _decoded(value: object) -> object:
    """JSON as what it says, so that the order of names does not matter."""
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str | bytes) else value
    return value


async def _check_nothing_is_left(db: Database) -> None:
    """Each message has its payload and its entry of the log, and no other is stored."""
    numbers = {number for (number,) in db.execute("SELECT number FROM body")}
    unrouted = {number for (number,) in db.execute("SELECT id FROM unrouted")}
    payloads = {keys.message_key(RecordType.PAYLOAD, one) for one in numbers}
    assert (
        await _stored(db, keys.prefix(RecordType.PAYLOAD))
        - {keys.message_key(RecordType.PAYLOAD, one) for one in unrouted}
        == payloads
    )
    logged = {db.log.key(one) for one in numbers | unrouted}
    assert await _stored(db, keys.log_prefix(1)) <= logged
    claims = await _stored(db, keys.prefix(RecordType.CLAIM))
    held = {keys.read_queue_key(key).rest for key in claims}
    assert held == {claim for (claim,) in db.execute("SELECT id FROM claim")}
    pages = await _stored(db, keys.prefix(RecordType.ACTIVE))
    raws = {
        f"{project}/{name}".encode()
        for project, name in db.execute("SELECT project, name FROM queue")
    }
    assert {keys.read_queue_key(key).queue for key in pages} <= raws
    for kind in (RecordType.ATTEMPT, RecordType.ADOPTED, RecordType.ATTEMPTS):
        if not numbers and not db.execute("SELECT 1 FROM history").get:
            assert not await _stored(db, keys.prefix(kind))


async def _stored(db: Database, prefix: bytes) -> set[bytes]:
    return {key async for rows in db.engine.scan(prefix) for key, _ in rows}
