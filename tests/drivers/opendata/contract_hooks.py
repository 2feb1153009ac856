"""After every contract test: the records say exactly what the memory says, and nothing is left."""

from tests.contract.stores import Stores
from tests.drivers.opendata.snapshot import check_invariants, snapshot
from zaqar_lite.storage.opendata import loading
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import catch_up
from zaqar_lite.storage.opendata.entries import Page
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.opendata.paging import prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import read_metadata


async def after_test(stores: Stores) -> None:
    """Load the store anew beside the one under test, and compare."""
    assert isinstance(stores.messages, OpenDataMessageStore)
    if stores.messages._db._users:  # the test may have closed it
        await check_database(stores.messages._db)


async def check_database(db: Database) -> None:
    """Compare a database with what a restart would make of its records."""
    now, limit = db.clock.now_ms(), db.page_cache.limit
    await load_all(db)
    for queue in db.queues:
        settle_all(queue, now)
        db.touched.add(queue)
    await db.committer.durable()
    restarted = Database(db.engine, db.clock, db.options)
    await loading.load_own_records(restarted)
    await loading.load(restarted)
    await loading.load_catalogue(restarted)
    await load_all(restarted)
    for queue in restarted.queues:
        settle_all(queue, now)
    for either in (db, restarted):
        for queue in either.queues:
            await read_metadata(either, queue, [e for p in queue.pages for e in p.entries.values()])
    assert snapshot(restarted, now) == snapshot(db, now)
    assert not restarted.damages
    await check_invariants(db)
    db.page_cache.limit = limit


def settle_all(queue: Queue, now: int) -> None:
    """Bring a queue up to now, in as many steps as it takes."""
    while not catch_up(queue, now):
        pass


def _cold(queue: Queue) -> list[Page]:
    return [page for page in queue.pages if page.summary]


async def load_all(db: Database) -> None:
    """Bring every page into memory, whatever the limit is."""
    db.page_cache.limit = 1 << 60
    for ref in db.queues.refs():
        await prepared(db, ref, None, _cold, reads=True)
