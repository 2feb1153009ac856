"""Rates that several processes share by Redis."""

from typing import Any

import pytest

from tests.contract.subject import QueueUnderTest
from tests.drivers.redis.conftest import Open
from tests.service.test_quotas import Time
from zaqar_lite.domain.errors import TooMany
from zaqar_lite.domain.models import Spent
from zaqar_lite.domain.quotas import UNLIMITED
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.rate_limits import WRITE, RateLimits, SharedRateLimits
from zaqar_lite.storage.management import ManagementStore

pytestmark = pytest.mark.anyio
RATE = 10


class Process:
    """One of two server processes, with its own connection to the store."""

    def __init__(
        self, management: ManagementStore, time: Time, rate: str = "write_requests"
    ) -> None:
        quotas = Quotas(management, UNLIMITED.changed({rate: RATE}), shared=True)
        self.rates = RateLimits(quotas, monotonic=time)
        self.shared = SharedRateLimits(self.rates, management, share=1 / 2)

    def post(self, project: str, wanted: int) -> int:
        """Send requests of a byte each; answer how many were let in."""
        for number in range(wanted):
            try:
                self.rates.spend(project, WRITE, 1)
            except TooMany:
                return number
        return wanted


async def test_a_bucket_holds_some_seconds_and_goes_into_debt(queue: QueueUnderTest) -> None:
    management, project = queue.stores.management, f"project-{queue.ref.name}"

    async def spend(tokens: float) -> float:
        (left,) = await management.spend(project, [Spent("b", RATE, tokens)], 2.0)
        return left

    assert await spend(5) == pytest.approx(15, abs=0.5)
    assert await spend(30) == pytest.approx(-15, abs=3)
    queue.advance(2_000)
    assert await spend(0) == pytest.approx(5, abs=3)
    queue.advance(100_000)
    assert await spend(0) == 20


@pytest.mark.parametrize("rate", ["write_requests", "write_bytes"])
async def test_two_processes_let_in_together_what_one_may(
    queue: QueueUnderTest, open_queue: Open, own_redis: Any, rate: str
) -> None:
    project, time = f"project-{queue.ref.name}", Time()
    other = await open_queue(own_redis.url)
    first = Process(queue.stores.management, time, rate)
    second = Process(other.stores.management, time, rate)
    admitted = 0
    seconds = 20
    for _ in range(seconds * 5):
        admitted += first.post(project, 10) + second.post(project, 10)
        await first.shared.report()
        await second.shared.report()
        time.now += 0.2
        queue.advance(200)
        other.advance(200)
    burst = 2 * RATE
    assert RATE * seconds * 0.8 <= admitted <= RATE * seconds + 3 * burst


async def test_without_the_store_each_has_its_share(queue: QueueUnderTest, own_redis: Any) -> None:
    time = Time()
    process = Process(queue.stores.management, time)
    assert process.post("p", 100) == 2 * RATE
    own_redis.kill()
    try:
        await process.shared.report()
        time.now += 10
        assert process.post("p", 100) == RATE
        time.now += 1
        assert process.post("p", 100) == RATE // 2
    finally:
        own_redis.start()
