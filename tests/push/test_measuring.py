"""Small runs of `tests.measure_deliveries`: what it measures holds, by generous bounds.

Its own sizes and exact figures need a quiet machine; the guide to webhooks has them.
"""

from collections.abc import Iterator

import pytest

from tests.measure_deliveries import ENVIRONMENT, beside_dead, idling, posting
from tests.server import ServerProcess

pytestmark = pytest.mark.anyio
_TIME_OUT = 20
"""Seconds after which a call to an endpoint that never answers ends."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("memory://", env=ENVIRONMENT) as running:
        yield running


async def test_half_of_the_endpoints_are_dead(server: ServerProcess) -> None:
    beside = await beside_dead(server, good=10, dead=10, posts=20, pause=0.02)
    assert beside.most < _TIME_OUT / 2


async def test_a_post_does_not_pay_for_its_subscriptions(server: ServerProcess) -> None:
    plain, listening = await posting(server, subscriptions=100, rounds=10)
    assert listening.p50 < 5 * plain.p50 + 0.1


async def test_subscriptions_that_get_nothing_cost_nothing(server: ServerProcess) -> None:
    idle = await idling(server, queues=50, each=4, seconds=2)
    assert idle.share < 0.25
