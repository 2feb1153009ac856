"""What operations cost: round trips, commands, entries examined, memory."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest
from tests.drivers.costs import costs
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.inspection import raw
from tests.drivers.redis.steps import BULK, examined, fill, forwarding
from tests.services import RedisServer
from zaqar_lite.domain.models import DelayMode
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.redis.claiming import MAX_CLAIMED

pytestmark = pytest.mark.anyio


def calls(client: Any) -> Counter[str]:
    """How often each command was called, by clients and by scripts."""
    stats = client.info("commandstats")
    found = Counter({name.removeprefix("cmdstat_"): s["calls"] for name, s in stats.items()})
    for own in ("info", "config|resetstat", "client|setinfo", "client|setname"):
        del found[own]
    return found


async def test_each_operation_is_one_round_trip(queue: QueueUnderTest, client: Any) -> None:
    def taken() -> int:
        found = calls(client)["fcall"]
        client.config_resetstat()
        return found

    assert set((await costs(queue, taken)).values()) == {1}


async def test_calls_of_one_turn_leave_in_one_write(
    own_redis: RedisServer, client: Any, open_queue: Open
) -> None:
    arrivals: list[int] = []

    def note(_: object, sent: bytes) -> bool:
        arrivals.append(len(sent))
        return True

    async with forwarding(own_redis.port, note) as port:
        queue = await open_queue(f"redis://127.0.0.1:{port}")
        await queue.post("first")
        arrivals.clear()
        await asyncio.gather(*[queue.post(str(number)) for number in range(40)])
        sent = [length for length in arrivals if length]
        assert len(sent) <= 2, "40 posts of one turn of the loop were sent one by one"
        await queue.stores.close()


@pytest.mark.parametrize("before", ["nothing", "delayed", "claimed"])
async def test_a_claim_costs_the_same_whatever_is_before(
    own_redis: RedisServer, client: Any, open_queue: Open, before: str
) -> None:
    costs = []
    for size in (BULK, 10 * BULK):
        queue = await open_queue(own_redis.url)
        if before == "delayed":
            await fill(queue, size, delay=10 * MINUTE)
        elif before == "claimed":
            await fill(queue, size)
            for _ in range(size // MAX_CLAIMED):
                await queue.claim(MAX_CLAIMED)
        await fill(queue, BULK if before != "nothing" else size)
        await queue.claim(1)
        client.config_resetstat()
        seen = examined(queue)
        for mode in (DelayMode.IGNORE, DelayMode.HONOUR):
            assert len((await queue.claim(20, mode=mode)).messages) == 20
        costs.append((calls(client), examined(queue) - seen))
    assert costs[0] == costs[1]
    assert costs[0][1] == 40


async def test_a_normal_claim_neither_reads_the_delayed_index_nor_d(
    queue: QueueUnderTest, client: Any, own_redis: RedisServer
) -> None:
    await queue.post("later", delay=HOUR // 2)
    await queue.post("now")
    tag = f"{{project/{queue.ref.name}}}"
    messages = f"zl:messages:{tag}"
    (ready,) = client.zrange(f"zl:ready:{tag}", 0, -1)
    record = client.hget(messages, ready)
    client.hset(messages, ready, record[:17] + b"\x7f" * 6 + record[23:])  # `d` in the far future
    with raw(own_redis.url) as other, other.monitor() as monitor:
        claimed = await queue.claim(10, mode=DelayMode.IGNORE)
        client.echo("end")
        lines = []
        while "ECHO" not in (line := monitor.next_command())["command"]:
            lines.append(line)
    assert len(claimed.messages) == 1
    of_scripts = [line["command"] for line in lines if line["client_type"] == "lua"]
    assert of_scripts
    assert not [command for command in of_scripts if "zl:due:" in command or "zl:wait" in command]


async def test_a_waiting_message_of_200_bytes_takes_at_most_600(
    own_redis: RedisServer, client: Any, open_queue: Open
) -> None:
    queue = await open_queue(own_redis.url)
    before = client.info("memory")["used_memory"]
    message = NewMessage(b'"' + b"x" * 198 + b'"', HOUR)
    count = 20 * BULK
    for _ in range(20):
        await queue.post_all([message] * BULK, client="3381af92-2b9e-11e3-b191-71861300734c")
    per_message = (client.info("memory")["used_memory"] - before) / count
    print(f"{per_message:.0f} bytes for each waiting message of 200 bytes")
    assert per_message <= 600
