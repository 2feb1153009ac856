"""A command is carried out and its answer lost, at every command of an operation.

With retryable writes, which the server recognises, and without, as many of MongoDB's kin want it.
"""

from collections.abc import AsyncIterator

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest
from tests.drivers.mongodb.conftest import CASE
from tests.drivers.mongodb.lossy import LossyProxy, lossy
from tests.drivers.mongodb.plays import Scenario, any_play, perform
from tests.services import MongoServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(params=["true", "false"])
async def lossy_queue(
    request: pytest.FixtureRequest, mongodb: MongoServer, database_name: str, quick_client: None
) -> AsyncIterator[tuple[QueueUnderTest, LossyProxy]]:
    """A queue by way of a proxy."""
    if mongodb.real and "directConnection" not in mongodb.url:
        pytest.skip("a client of several members does not stay at the proxy")
    opened: list[Stores] = []
    options = StoreOptions(extra={"database": database_name})
    async with lossy(mongodb.url) as (proxy, url):
        uri = f"{url}&retryWrites={request.param}"
        stores = await Stores.open(CASE, uri, Clock(), options, opened)
        try:
            yield QueueUnderTest(stores, QueueRef("project", "queue")), proxy
        finally:
            await stores.close()


@any_play
async def test_what_was_carried_out_is_told_as_done(
    lossy_queue: tuple[QueueUnderTest, LossyProxy], scenario: Scenario
) -> None:
    """The first command of the act loses its answer, then the second, up to the last."""
    queue, proxy = lossy_queue
    number, lost = 0, True
    while lost:
        number += 1
        await perform(scenario, queue.named(f"queue-{number}"), proxy.losing(number))
        lost = proxy.lost is not None
    assert number > 1
