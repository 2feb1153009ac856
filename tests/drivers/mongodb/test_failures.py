"""Failures of the server, planted by its own fail points: survived, or told as they are."""

import gc
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import uuid4

import pytest
from pymongo import errors

from tests.contract.stores import Stores
from tests.contract.subject import MINUTE, QueueUnderTest, ack, ids, texts
from tests.drivers.mongodb.commands import READS_AND_WRITES
from tests.drivers.mongodb.conftest import OpenStores
from tests.drivers.mongodb.inspection import database_of
from tests.drivers.mongodb.plays import Scenario, any_play, perform
from tests.services import MongoServer, free_port, start_mongo
from tests.waiting import until_available
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Invalid, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import DelayMode, ListQuery, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.mongodb import create, readiness, transactions
from zaqar_lite.storage.mongodb.errors import translate
from zaqar_lite.storage.mongodb.transitions import POP_TIME_MS

pytestmark = [
    pytest.mark.anyio,
    # pymongo drops the socket of a monitor that is cancelled while it connects.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NOT_PRIMARY, STEPPED_DOWN = 10107, 189
TIME_IS_UP = 50
WRITE_CONCERN_TIMEOUT = {"code": 64, "errmsg": "waiting for replication timed out"}
ONCE = {"times": 1}
LABELS = {
    "commitTransaction": ["RetryableWriteError"],
    "findAndModify": ["TransientTransactionError"],
    "insert": ["TransientTransactionError"],
}
"""What a mongod adds to an error itself."""

QUICK = "serverMonitoringMode=poll&heartbeatFrequencyMS=500&serverSelectionTimeoutMS=8000"
"""A fail point changes nothing that the server would announce: ask it again, and soon."""


class Fail(Protocol):
    """The type of the `fail` fixture."""

    def __call__(self, *names: str, mode: Any = ONCE, **data: Any) -> Any:
        """Let these commands of the test's stores fail, while the context lasts."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what pymongo dropped here, so that no later test is blamed for it."""
    yield
    gc.collect()


@pytest.fixture
def app_name() -> str:
    """The name by which the server knows the clients of this test."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
async def stores(open_stores: OpenStores, app_name: str) -> Stores:
    """Stores whose commands can be made to fail, and no one else's."""
    return await open_stores(query=f"{QUICK}&appName={app_name}", as_member=True)


@pytest.fixture
def fail(mongodb: MongoServer, app_name: str) -> Fail:
    """Plant a failure."""

    @contextmanager
    def plant(*names: str, mode: Any = ONCE, **data: Any) -> Iterator[None]:
        point = {"failCommands": list(names), "appName": app_name, **data}
        with database_of(mongodb.url, "admin") as admin:
            admin.command({"configureFailPoint": "failCommand", "mode": mode, "data": point})
            try:
                yield
            finally:
                admin.command({"configureFailPoint": "failCommand", "mode": "off"})

    return plant


@pytest.mark.usefixtures("stores")
async def test_workers_that_start_at_once_drop_the_index_of_earlier_versions(
    open_stores: OpenStores, fail: Fail, app_name: str, mongodb: MongoServer, database_name: str
) -> None:
    """All of them see it, and one is told that it has gone."""
    with database_of(mongodb.url, database_name) as database:
        database["zaqar_messages"].create_index("q", name="live")
    with fail("dropIndexes", errorCode=27):
        await open_stores(query=f"{QUICK}&appName={app_name}", as_member=True)


@any_play
@pytest.mark.parametrize(
    "failure",
    [{"errorCode": NOT_PRIMARY}, {"errorCode": STEPPED_DOWN}, {"closeConnection": True}],
    ids=["not primary", "stepped down", "connection closed"],
)
@pytest.mark.usefixtures("quick_client")
async def test_an_act_survives_a_failure_of_each_of_its_commands(
    queue: QueueUnderTest, fail: Fail, scenario: Scenario, failure: dict[str, Any]
) -> None:
    for command in sorted(READS_AND_WRITES | {"commitTransaction"}):
        labels = LABELS.get(command, []) if "errorCode" in failure else []
        point = {**failure, "errorLabels": labels} if labels else failure
        await perform(scenario, queue.named(command), fail(command, **point))


@pytest.mark.parametrize("code", [112, 251])
@pytest.mark.parametrize("labels", [[], ["TransientTransactionError"]])
async def test_a_conflict_is_told_by_its_label_or_by_its_code(
    queue: QueueUnderTest, fail: Fail, code: int, labels: list[str]
) -> None:
    await queue.post("first")
    with fail("insert", mode={"times": 3}, errorCode=code, errorLabels=labels):
        await queue.post("a", "b")
    assert await queue.bodies() == ["first", "a", "b"]


async def test_a_pop_whose_removal_fails_is_answered_and_finished_by_the_sweep(
    queue: QueueUnderTest, second: QueueUnderTest, fail: Fail
) -> None:
    """What was taken and read is the caller's, whatever becomes of the clean-up."""
    await queue.post(*"abc")
    with fail("delete", mode="alwaysOn", errorCode=TIME_IS_UP):
        popped = await queue.pop(2)
    assert texts(popped.messages) == ["a", "b"]
    assert await second.bodies() == ["c"]
    assert (await queue.stores.messages.sweep(100)).deleted == 2
    queue.advance(2 * POP_TIME_MS)
    await second.sweep()
    assert await second.bodies() == ["c"]
    assert await second.counts() == (1, 0, 0)


async def test_a_pop_removes_only_what_it_was_able_to_read(
    queue: QueueUnderTest, second: QueueUnderTest, fail: Fail
) -> None:
    """The messages of its second step are held, but nobody was given them."""
    await queue.post("a")
    await queue.post(*["ended"] * 20, ttl=MINUTE)
    await queue.post("b")
    queue.advance(MINUTE)
    steps = {"skip": 4}  # find, delete what has ended, read what is held; find
    with fail("aggregate", "delete", mode=steps, errorCode=TIME_IS_UP):
        popped = await queue.pop(2)
    assert texts(popped.messages) == ["a"]
    assert await second.bodies() == []
    await queue.sweep()
    queue.advance(2 * POP_TIME_MS)
    await second.sweep()
    assert await second.bodies() == ["b"]


async def test_what_a_claim_holds_is_answered_though_its_dead_letters_can_not_be_moved(
    queue: QueueUnderTest, other: QueueUnderTest, fail: Fail
) -> None:
    await queue.post("exhausted")
    await queue.release(await queue.claim_id())
    await queue.post("ready")
    policy = other.as_dead_letter_queue(1)
    with fail("findAndModify", mode="alwaysOn", errorCode=TIME_IS_UP):
        claimed = await queue.claim(dead_letter=policy)
    assert texts(claimed.messages) == ["ready"]
    assert claimed.more
    assert (await queue.claim(dead_letter=policy)).moved == 1


async def test_news_of_other_servers_go_on_after_a_failure(
    queue: QueueUnderTest, second: QueueUnderTest, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became ready while this server could not look is told when it can again.

    Who watches later takes no news from the first, nor brings old ones by ending.
    """
    monkeypatch.setattr(readiness, "LOOK_MS", 3_600_000)  # only the looks of this test
    heard: list[int] = []
    await second.post("old")
    await queue.stores.messages.watch(queue.ref, heard.append)
    news = queue.stores.messages._readiness  # type: ignore[attr-defined]
    await news.look_again()
    assert heard == []
    with fail("aggregate", mode="alwaysOn", errorCode=TIME_IS_UP):
        await second.post("a")
        await news.look_again()
        assert heard == []
    later = await queue.stores.messages.watch(queue.ref, print)
    await news.look_again()
    later.end()
    await news.look_again()
    assert heard == [1]


async def test_too_few_confirmations_are_told(
    queue: QueueUnderTest, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write may or may not last: no 201 for it, and a claim of nobody is given back."""
    monkeypatch.setattr(transactions, "BUDGET", 0.3)
    await queue.post("first")
    failure = {"mode": "alwaysOn", "writeConcernError": WRITE_CONCERN_TIMEOUT}
    with fail("commitTransaction", **failure):
        with pytest.raises(Unavailable, match="a failover may undo it"):
            await queue.post("a")
    with fail("update", **failure):
        with pytest.raises(Unavailable, match="a failover may undo it"):
            await queue.claim()
    await queue.post("b")
    await queue.sweep()
    assert await queue.bodies() in (["first", "b"], ["first", "a", "b"])
    claimed = await queue.claim()
    assert {message.claim_count for message in claimed.messages} == {1}


@pytest.mark.parametrize(
    ("failure", "count"), [({"errorCode": 50}, None), ({"closeConnection": True}, 4)]
)
async def test_a_server_that_stays_away_is_unavailable_in_every_operation(
    stores: Stores, queue: QueueUnderTest, fail: Fail, failure: dict[str, Any], count: int | None
) -> None:
    """An error that nothing helps against; a lost connection, which costs retries, for some."""
    (message_id,) = await queue.post("a", delay=MINUTE)
    claim_id = "0" * 32
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "post": lambda: queue.post("b"),
        "list": queue.page,
        "get": lambda: queue.get(message_id),
        "edit": lambda: queue.edit(message_id, "b"),
        "delete": lambda: queue.delete(message_id),
        "pop": lambda: queue.pop(mode=DelayMode.HONOUR),
        "claim": lambda: queue.claim(mode=DelayMode.HONOUR),
        "get_claim": lambda: queue.get_claim(claim_id),
        "renew": lambda: queue.renew(claim_id),
        "release": lambda: queue.release(claim_id),
        "settle": lambda: queue.settle(claim_id, ack(message_id)),
        "next_due": queue.next_due,
        "purge": queue.purge,
        "drop": queue.drop,
        "stats": queue.stats,
        "split": lambda: stores.messages.stats(queue.ref, ranges=2),
        "expose": queue.release_delayed,
        "sweep": lambda: stores.messages.sweep(10),
        "create": lambda: stores.management.create_queue(queue.ref, {}, max_queues=5),
        "read": lambda: stores.management.get_queue(queue.ref),
        "list queues": lambda: stores.management.list_queues("project", limit=5),
        "count": lambda: stores.management.count_queues("project"),
        "sources": lambda: stores.management.dead_letter_sources(queue.ref, limit=5),
        "exposing": lambda: stores.management.exposing_queues(limit=5),
        "name queues": lambda: anext(aiter(stores.messages.nonempty_queues())),
    }
    every = (
        *("aggregate", "count", "find", "insert", "update", "delete", "findAndModify"),
        "commitTransaction",
    )
    with fail(*every, mode="alwaysOn", **failure):
        for name, operation in list(operations.items())[:count]:
            with pytest.raises(Unavailable) as caught:
                await operation()
            assert "127.0.0.1" not in caught.value.shown, name
    assert await queue.bodies() == ["a"]


async def test_a_primary_that_steps_down_for_a_while_loses_nothing(
    queue: QueueUnderTest, mongodb: MongoServer
) -> None:
    if mongodb.real:
        pytest.skip("this test steps the primary down, and the server is somebody else's")
    await queue.post("before")
    with database_of(mongodb.url, "admin") as admin:
        admin.command({"replSetStepDown": 1, "force": True})
    # The stand-in's refusals lack the label that makes pymongo wait.
    await until_available(lambda: queue.post("during"))
    assert texts((await queue.claim()).messages) == ["before", "during"]


async def test_nobody_at_the_address_is_unavailable_when_it_opens() -> None:
    uri = f"mongodb://user:secret@127.0.0.1:{free_port()}/?serverSelectionTimeoutMS=200"
    store, _ = create(uri, clock=Clock(), options=StoreOptions())
    with pytest.raises(Unavailable) as caught:
        await store.open()
    assert "secret" not in str(caught.value)
    await store.close()


async def test_a_user_without_rights_is_told_at_the_start(
    open_stores: OpenStores, fail: Fail, app_name: str
) -> None:
    with fail("createIndexes", errorCode=13, mode="alwaysOn"):
        with pytest.raises(ConfigurationError, match="readWrite"):
            await open_stores(query=f"appName={app_name}")


async def test_a_user_who_loses_its_rights_is_unavailable(
    open_stores: OpenStores, fail: Fail, app_name: str
) -> None:
    stores = await open_stores(query=f"appName={app_name}")
    with fail("aggregate", errorCode=13, mode="alwaysOn"):
        with pytest.raises(Unavailable, match="readWrite"):
            await stores.messages.stats(QueueRef("project", "queue"))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        *((errors.WriteError("", code), Invalid, "16 MiB") for code in (10334, 17419)),
        *((errors.OperationFailure("", n), ConfigurationError, "readWrite") for n in (18, 8000)),
        (errors.ServerSelectionTimeoutError("down, Timeout: 10s, .."), Unavailable, r"\(down\)$"),
        (errors.AutoReconnect("db1 closed"), Unavailable, r"was lost\. \(db1 closed\)$"),
        (errors.BulkWriteError({"writeErrors": [{"code": 17419}]}), Invalid, "16 MiB"),
    ],
)
def test_what_went_wrong_is_told(
    error: errors.PyMongoError, kind: type[ZaqarLiteError], text: str
) -> None:
    told = translate(error)
    assert type(told) is kind
    assert re.search(text, str(told))


async def test_a_server_that_was_killed_comes_back_with_what_was_answered() -> None:
    with start_mongo(durable=True) as server:
        # pymongo asks a server that was lost again every 500 ms.
        store, _ = create(
            f"{server.url}&serverSelectionTimeoutMS=3000", clock=Clock(), options=StoreOptions()
        )
        async with store:
            ref = QueueRef("project", "queue")
            message = NewMessage(b'"a"', 3_600_000)
            (kept,) = await store.post(ref, [message], client_id="c", version=None)
            server.kill()
            with pytest.raises(Unavailable):
                await store.post(ref, [message], client_id="c", version=None)
            server.start()
            page = await store.list_messages(ref, ListQuery(limit=10))
            assert ids(page.messages) == [kept.id]
            (posted,) = await store.post(ref, [message], client_id="c", version=None)
            page = await store.list_messages(ref, ListQuery(limit=10))
            assert ids(page.messages) == [kept.id, posted.id]
