"""Stores of their own for the tests of this driver: a database for each test, and every command."""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

import pytest
from pymongo import common, monitoring, network_layer

from tests.contract.stores import CASES, Stores
from tests.contract.subject import QueueUnderTest
from tests.drivers.mongodb.commands import Commands
from tests.drivers.mongodb.inspection import database_of
from tests.services import MongoServer, mongo_from, start_mongo
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions

(CASE,) = [case for case in CASES if case.name == "mongodb"]


class OpenStores(Protocol):
    """The type of the `open_stores` fixture."""

    async def __call__(
        self, *, query: str = "", as_member: bool = False, max_messages: int = 0, **extra: object
    ) -> Stores:
        """Open a pair of stores over the test's database; `as_member` of its replica set."""


@pytest.fixture(scope="session")
def mongodb() -> Iterator[MongoServer]:
    """A server that can be told to fail: fail points are on (ZAQAR_TEST_MONGODB_URL)."""
    url = os.environ.get("ZAQAR_TEST_MONGODB_URL")
    with mongo_from(url) if url else start_mongo() as server:
        yield server


@pytest.fixture(scope="session")
def every_command() -> Commands:
    """All commands of all clients of this process, in order."""
    commands = Commands()
    monitoring.register(commands)
    return commands


@pytest.fixture
def commands(every_command: Commands) -> Iterator[Commands]:
    """The commands of this test."""
    every_command.clear()
    yield every_command
    every_command.clear()


@pytest.fixture
def database_name(mongodb: MongoServer) -> Iterator[str]:
    """The name of a database that goes with the test."""
    name = f"zaqar_test_{uuid4().hex[:12]}"
    yield name
    with database_of(mongodb.url, name) as database:
        database.client.drop_database(name)


@pytest.fixture
async def open_stores(
    mongodb: MongoServer, database_name: str, commands: Commands
) -> AsyncIterator[OpenStores]:
    """A function that opens pairs of stores over the test's database; all share one clock."""
    opened: list[Stores] = []
    clock = Clock()

    async def start(
        *, query: str = "", as_member: bool = False, max_messages: int = 0, **extra: object
    ) -> Stores:
        options = StoreOptions(extra={"database": database_name, **extra})
        if max_messages:
            options = replace(options, max_messages=max_messages)
        uri = mongodb.as_member if as_member else mongodb.url
        if query:
            uri += ("&" if "?" in uri else "/?") + query
        return await Stores.open(CASE, uri, clock, options, opened)

    yield start
    for stores in reversed(opened):
        await stores.close()


@pytest.fixture
async def stores(open_stores: OpenStores) -> Stores:
    """A pair of stores with ordinary options."""
    return await open_stores()


@pytest.fixture
def queue(stores: Stores) -> QueueUnderTest:
    """A queue of the test's own, without a record."""
    return QueueUnderTest(stores, QueueRef("project", "queue"))


@pytest.fixture
def other(stores: Stores) -> QueueUnderTest:
    """Another queue of the same project."""
    return QueueUnderTest(stores, QueueRef("project", "other"))


@pytest.fixture
async def second(open_stores: OpenStores, queue: QueueUnderTest) -> QueueUnderTest:
    """The queue as another server process sees it."""
    return queue.at(await open_stores())


@pytest.fixture
def quick_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pymongo find a lost server in 50 ms, not in 500: each lost answer waits for that."""
    monkeypatch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.05)
    monkeypatch.setattr(network_layer, "_POLL_TIMEOUT", 0.05)
