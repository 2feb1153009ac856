"""kill -9 of Redis under load, by persistence setting: what a 201 means.

ZAQAR_TEST_KILL_ROUNDS sets the rounds (2 unless told).
"""

import asyncio
import os
import random
from typing import Literal

import pytest

from tests import services
from tests.drivers.redis.load import under_load

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "2"))


@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
async def test_a_killed_redis_loses_nothing_that_was_acknowledged(
    appendfsync: Literal["always", "everysec"],
) -> None:
    """Two servers with settling workers race over one Redis that is killed in every round.

    With `everysec` the process's death loses nothing either (what was written is with the
    kernel); the loss of power would lose up to a second, which no test here can show.
    """
    with services.start_redis(appendfsync=appendfsync) as redis:
        async with under_load(redis.url, settles=True) as load:
            for _ in range(ROUNDS):
                await asyncio.sleep(random.uniform(0.3, 1.2))
                redis.kill()
                await asyncio.sleep(0.2)
                await asyncio.to_thread(redis.start)
                load.history.restarts += 1
            await asyncio.sleep(0.5)
    assert load.report(f"appendfsync {appendfsync}, kill -9") == []
    assert load.history.holds
    assert any(failure.answered for failure in load.history.failures)
    assert any(reject.answered for reject in load.history.rejects)
    assert load.statuses[503], "no kill hit a request"
