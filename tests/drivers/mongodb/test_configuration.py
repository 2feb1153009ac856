"""Settings and indexes: what is wrong is told at the start, with the way out."""

import bson
import pytest

from tests.contract.subject import QueueUnderTest
from tests.drivers.mongodb.commands import Commands, name_of
from tests.drivers.mongodb.conftest import OpenStores
from tests.drivers.mongodb.inspection import database_of
from tests.drivers.mongodb.lossy import answering
from tests.services import MongoServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.mongodb import create, transactions
from zaqar_lite.storage.mongodb.connection import read_configuration

pytestmark = pytest.mark.anyio


def test_writes_are_confirmed_by_a_majority_unless_the_uri_says_otherwise() -> None:
    assert read_configuration("mongodb://h", {}).client_options["w"] == "majority"
    assert "w" not in read_configuration("mongodb://h/?w=2", {}).client_options
    assert "wTimeoutMS" not in read_configuration("mongodb://h/?wtimeoutms=5", {}).client_options


def test_the_database_is_the_options_then_the_uris_then_zaqar() -> None:
    assert read_configuration("mongodb://h/mine", {"database": "other"}).database == "other"
    assert read_configuration("mongodb://h/mine?w=1", {}).database == "mine"
    assert read_configuration("mongodb://h/?w=1", {}).database == "zaqar"


async def test_two_prefixes_are_two_stores(open_stores: OpenStores) -> None:
    ref = QueueRef("project", "queue")
    one = QueueUnderTest(await open_stores(collection_prefix="one_"), ref)
    two = QueueUnderTest(await open_stores(collection_prefix="two_"), ref)
    await one.post("a")
    assert await two.bodies() == []
    assert await one.bodies() == ["a"]


async def test_reads_that_decide_go_to_the_primary_and_lists_where_the_uri_says(
    open_stores: OpenStores, commands: Commands
) -> None:
    stores = await open_stores(query="readPreference=secondaryPreferred&readConcernLevel=majority")
    queue = QueueUnderTest(stores, QueueRef("project", "queue"))
    await queue.post("a")
    commands.clear()
    await queue.page(limit=20)
    (decides, shows) = [c for c in commands.take() if name_of(c) == "aggregate"]
    assert decides["readConcern"]["level"] == shows["readConcern"]["level"] == "majority"
    # A secondary waits until it has what the counter stands for; else a reader would pass it.
    assert shows["lsid"] == decides["lsid"]
    assert "afterClusterTime" in shows["readConcern"]
    commands.clear()
    await queue.claim()
    reads = [c for c in commands.take() if name_of(c) in ("find", "aggregate")]
    assert {c["readConcern"]["level"] for c in reads} == {"local"}


async def test_every_write_carries_the_write_concern(
    open_stores: OpenStores, commands: Commands
) -> None:
    queue = QueueUnderTest(await open_stores(), QueueRef("project", "queue"))
    commands.clear()
    await queue.post("a")
    await queue.pop()
    await queue.claim()
    sent = [c for c in commands.take() if name_of(c) not in ("find", "aggregate")]
    alone = [c for c in sent if "autocommit" not in c]
    commits = [c for c in sent if name_of(c) == "commitTransaction"]
    assert len(alone) >= 3
    assert len(commits) == 1
    assert all(c["writeConcern"]["w"] == "majority" for c in alone + commits)


async def test_opening_again_changes_no_index(
    open_stores: OpenStores, mongodb: MongoServer, database_name: str
) -> None:
    await open_stores()
    with database_of(mongodb.url, database_name) as database:
        before = database["zaqar_messages"].index_information()
        await open_stores()
        await open_stores(create_indexes=False)
        assert database["zaqar_messages"].index_information() == before


async def test_a_missing_index_is_told_where_none_may_be_created(
    open_stores: OpenStores, mongodb: MongoServer, database_name: str
) -> None:
    await open_stores()
    with database_of(mongodb.url, database_name) as database:
        database["zaqar_messages"].drop_index("sized")
        with pytest.raises(ConfigurationError, match=r"'sized' on \(q, s, k, e, w, z\) is missing"):
            await open_stores(create_indexes=False)
        await open_stores()
        assert "sized" in database["zaqar_messages"].index_information()
        database["zaqar_messages"].create_index("q", name="live")  # as earlier versions had one
        await open_stores()
        assert "live" not in database["zaqar_messages"].index_information()


@pytest.mark.parametrize("keys", [[("q", 1), ("k", 1)], [("q", 1), ("k", -1)]])
async def test_a_different_index_is_told(
    open_stores: OpenStores, mongodb: MongoServer, database_name: str, keys: list[tuple[str, int]]
) -> None:
    """Without the unique index two messages could have one position."""
    await open_stores()
    with database_of(mongodb.url, database_name) as database:
        database["zaqar_messages"].drop_index("position")
        database["zaqar_messages"].create_index(keys, name="position")
        for create_indexes in (True, False):
            with pytest.raises(ConfigurationError, match="differs from what is needed"):
                await open_stores(create_indexes=create_indexes)


async def test_a_standalone_server_is_refused_with_the_way_out() -> None:
    """It answers the greeting as a mongod without a replica set does."""
    greeting = {"ok": 1.0, "isWritablePrimary": True, "minWireVersion": 0, "maxWireVersion": 21}
    async with answering(bson.encode(greeting)) as port:
        store, _ = create(
            f"mongodb://127.0.0.1:{port}/?directConnection=true",
            clock=Clock(),
            options=StoreOptions(),
        )
        with pytest.raises(ConfigurationError) as caught:
            await store.open()
    assert "--replSet" in str(caught.value)
    assert "rs.initiate()" in str(caught.value)


async def test_either_store_closes_without_the_other(
    open_stores: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one waits for no heartbeat."""
    monkeypatch.setattr(transactions, "BEAT_SECONDS", 3_600)
    stores = await open_stores()
    await stores.management.close()
    await stores.messages.ping()
    await stores.messages.close()
    await stores.messages.close()
    await stores.management.open()
    await stores.management.ping()
    assert await stores.management.count_queues("project") == 0
