"""Sentinel's failover: the master is followed, and in mid-load no message has two holders."""

import asyncio

import pytest

from tests import services
from tests.drivers.redis.load import under_load

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def of_holders(broken: list[str]) -> list[str]:
    return [violation for violation in broken if violation.startswith(("two", "early"))]


async def test_a_failover_under_load_gives_no_message_to_two(
    redis_sentinel: services.RedisSentinel,
) -> None:
    """An orderly failover. What the new master had not got yet is lost; it is counted."""
    async with under_load(redis_sentinel.url) as load:
        await asyncio.sleep(1)
        await asyncio.to_thread(redis_sentinel.fail_over)
        await load.goes_on()
    assert not of_holders(load.report("sentinel, failover"))


async def test_a_dead_master_is_replaced_under_load() -> None:
    """What the replica had not got dies with the master, leases too: counted, not promised."""
    with services.start_redis_sentinel(appendfsync="always") as sentinel:
        async with under_load(sentinel.url) as load:
            await asyncio.sleep(1)
            sentinel.master().kill()
            await load.goes_on()
    broken = load.report("sentinel, kill -9 of the master")
    print(f"{len(of_holders(broken))} of them held by two")
    assert load.statuses[503]
    assert not [violation for violation in broken if violation.startswith("early")]


async def test_a_cluster_failover_under_load_breaks_no_promise(
    replicated_cluster: services.RedisCluster,
) -> None:
    """Each replica takes its master's place when it has all that the master had."""
    async with under_load(replicated_cluster.url) as load:
        await asyncio.sleep(1)
        for node in replicated_cluster.nodes[3:]:
            node.cli("cluster", "failover")
        await load.goes_on()
    assert not load.report("cluster, failover")
