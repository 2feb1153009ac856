"""After every contract test on memory:// and embedded://: the tables say what they must."""

import asyncio

from tests.contract.stores import Stores
from tests.drivers.sql.tables import broken
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore


async def after_test(stores: Stores) -> None:
    """Compare the counts with what is there, and look for rows that nothing names."""
    assert isinstance(stores.messages, SqlMessageStore)
    db = stores.messages._db
    if not db.place.syncs or db._users:  # the test may have closed it
        await check_database(db)
    assert not db.undone, "what is refused after it has written undoes its batch"


async def check_database(db: Database) -> None:
    """Commit, then look for what is wrong in the tables."""
    db.begin()
    if db.place.syncs:
        await db.future()
    else:
        await asyncio.sleep(0)  # the commit comes with the loop's next turn
        await asyncio.sleep(0)
    found = broken(db.connection, db.clock.now_ms())
    assert not found, "\n".join(found)
