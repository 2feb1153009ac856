"""A server that is killed under load loses no delivery of what it has answered 201."""

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from tests.push.receiver import Receiver
from tests.server import PING_HEADERS, ServerProcess

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ZAQAR_TEST_ALL"), reason="takes long: tests/run --all"),
]
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "3"))


async def test_every_acknowledged_message_reaches_every_subscription(tmp_path: Path) -> None:
    offset = tmp_path / "clock"
    env = {
        "ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8",
        "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset),
    }
    acknowledged: set[int] = set()
    async with Receiver() as first, Receiver() as second, Receiver() as orderly:
        receivers = (first, second, orderly)
        with ServerProcess(f"embedded://{tmp_path / 'data'}", env=env) as server:
            for number in range(ROUNDS):
                if number:
                    await asyncio.to_thread(server.start)
                async with httpx.AsyncClient(base_url=server.url, headers=PING_HEADERS) as http:
                    for receiver in receivers:
                        options = {"ordered": receiver is orderly}
                        made = await http.post(
                            "/v2/queues/q/subscriptions",
                            json={"subscriber": receiver.url, "options": options},
                        )
                        assert made.status_code == 201
                    await _post_until_killed(http, server, number, acknowledged)
                offset.write_text(str((number + 1) * 61_000))  # leases of the killed end
            await asyncio.to_thread(server.start)
            for receiver in receivers:
                while acknowledged - _bodies(receiver):
                    await receiver.wait(len(receiver.received) + 1, seconds=60)
    assert acknowledged
    in_order = list(dict.fromkeys(one.document["body"] for one in orderly.received))
    assert in_order == sorted(in_order)
    twice = [len(receiver.received) - len(_bodies(receiver)) for receiver in receivers]
    print(f"{len(acknowledged)} acknowledged, received again: {twice}")


async def _post_until_killed(
    http: httpx.AsyncClient, server: ServerProcess, number: int, acknowledged: set[int]
) -> None:
    killing = asyncio.get_running_loop().call_later(0.5 + number / 10, server.kill)
    try:
        for body in range(number * 10_000, (number + 1) * 10_000):
            answer = await http.post(
                "/v2/queues/q/messages", json={"messages": [{"body": body, "ttl": 3600}]}
            )
            if answer.status_code == 201:
                acknowledged.add(body)
    except httpx.TransportError:
        return
    finally:
        killing.cancel()


def _bodies(receiver: Receiver) -> set[int]:
    return {one.document["body"] for one in receiver.received}
