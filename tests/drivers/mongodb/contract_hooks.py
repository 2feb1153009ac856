"""What the contract suite checks on this driver after every test."""

from tests.contract.stores import Stores
from tests.drivers.mongodb.inspection import database_of, faults


async def after_test(stores: Stores) -> None:
    """Hold the stored documents to the data layout, then remove them.

    The stand-in for mongod walks a whole collection for each query, so what tests leave behind
    would slow all later ones.
    """
    with database_of(stores.uri) as database:
        found = faults(database)
        for name in ("zaqar_queues", "zaqar_messages", "zaqar_keys", "zaqar_records"):
            database[name].delete_many({})
    assert not found, found
