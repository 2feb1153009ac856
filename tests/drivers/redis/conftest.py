"""A Redis of these tests' own, and stores over it."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, Protocol
from uuid import uuid4

import pytest

from tests import services
from tests.contract.stores import CASES, Stores
from tests.contract.subject import QueueUnderTest
from tests.drivers.redis.inspection import raw
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.redis.messages import RedisMessageStore


class Open(Protocol):
    """A function that opens stores on a URI, and answers a new queue of theirs."""

    def __call__(self, uri: str, **options: int) -> Awaitable[QueueUnderTest]:
        """`options` are those of the stores."""


@pytest.fixture(scope="package")
def own_redis() -> Iterator[services.RedisServer]:
    """A server that nobody else counts commands on, and that may be killed; it keeps all."""
    with services.start_redis(
        appendfsync="always", options=("--enable-debug-command", "local")
    ) as server:
        yield server


@pytest.fixture
def replicated_cluster() -> Iterator[services.RedisCluster]:
    """Three masters with a replica each."""
    with services.start_redis_cluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def client(own_redis: services.RedisServer) -> Iterator[Any]:
    """A plain client of the own server."""
    own_redis.start()
    with raw(own_redis.url) as found:
        yield found


@pytest.fixture
async def open_queue() -> AsyncIterator[Open]:
    """A function that opens stores on a URI, and answers a new queue of theirs."""
    opened: list[Stores] = []
    case = next(case for case in CASES if case.name == "redis")

    async def start(uri: str, **options: Any) -> QueueUnderTest:
        stores = await Stores.open(case, uri, Clock(), StoreOptions(**options), opened)
        return QueueUnderTest(stores, QueueRef("project", f"queue-{uuid4().hex}"))

    yield start
    for stores in opened:
        await stores.close()


@pytest.fixture
async def queue(own_redis: services.RedisServer, client: Any, open_queue: Open) -> QueueUnderTest:
    """A new queue on the own server."""
    return await open_queue(f"{own_redis.url}?timeout=2")


@pytest.fixture
async def slotted(own_redis: services.RedisServer, client: Any, open_queue: Open) -> QueueUnderTest:
    """A new queue whose operations register nothing for the sweep themselves, as in a cluster."""
    queue = await open_queue(f"{own_redis.url}?timeout=2")
    assert isinstance(queue.stores.messages, RedisMessageStore)
    queue.stores.messages._connection.router.keep_to_slots()
    return queue


@pytest.fixture
def target(queue: QueueUnderTest) -> QueueUnderTest:
    """A queue for the dead letters of `queue`."""
    return queue.named(f"{queue.ref.name}-dead")
