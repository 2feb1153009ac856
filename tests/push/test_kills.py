"""A server that is killed under load loses no delivery of what it has answered 201.

ZAQAR_TEST_KILL_ROUNDS is how often it is killed. Five receivers subscribe for good: two answer at
once, one is slow, one fails now and then, one is served in strict order. A sixth comes and goes in
each round. How many deliveries came twice is printed.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from tests.push.receiver import Receiver
from tests.server import PING_HEADERS, ServerProcess
from tests.services import start_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ZAQAR_TEST_ALL"), reason="takes long: tests/run --all"),
]
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "3"))
_TTL = 864_000
_LEASE = 61
_UNDER_WAY = 1.0
"""Seconds in which a request that was sent before an unsubscribe may still be read."""
_AT_ONCE = {"retries_with_no_delay": 10, "minimum_delay": 0, "maximum_delay": 10}
_SUBSCRIPTIONS = "/v2/queues/q/subscriptions"


@pytest.fixture(params=["embedded", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URI of an empty store, which outlives the server that is killed."""
    if request.param == "embedded":
        yield f"embedded://{tmp_path / 'data'}"
        return
    with start_redis() as redis:
        yield redis.url


async def test_every_acknowledged_message_reaches_every_subscription(
    store: str, tmp_path: Path
) -> None:
    offset = tmp_path / "clock"
    env = {
        "ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8",
        "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset),
    }
    run = _Run(random.Random(17))
    async with (
        Receiver() as first,
        Receiver() as second,
        Receiver(answer=_slowly) as slow,
        Receiver(answer=_now_and_then) as shaky,
        Receiver() as orderly,
        Receiver() as leaving,
    ):
        receivers = (first, second, slow, shaky, orderly)
        with ServerProcess(store, env=env) as server:
            async with httpx.AsyncClient(base_url=server.url, headers=PING_HEADERS) as http:
                for receiver in receivers:
                    await _subscribe(http, receiver.url, ordered=receiver is orderly)
                for number in range(ROUNDS):
                    await run.round(http, server, f"{leaving.url}/{number}")
                    offset.write_text(str((number + 1) * _LEASE * 1000))  # leases of the killed end
                    await asyncio.to_thread(server.start)
            for receiver in receivers:
                while run.acknowledged - _bodies(receiver):
                    await receiver.wait(len(receiver.received) + 1, seconds=60)
    assert run.acknowledged
    in_order = list(dict.fromkeys(one.document["body"] for one in orderly.received))
    assert in_order == sorted(in_order)
    late = run.check_ended(leaving)
    twice = [len(receiver.received) - len(_bodies(receiver)) for receiver in receivers]
    print(
        f"\n{ROUNDS} kills, {len(run.acknowledged)} acknowledged, each to {len(receivers)}: "
        f"received again {twice}; {len(run.ended)} unsubscribed, their last request "
        f"{late * 1000:.0f} ms after the answer at most"
    )


class _Run:
    """What was posted and unsubscribed, and what the server has answered to it."""

    def __init__(self, chance: random.Random) -> None:
        self.acknowledged: set[int] = set()
        self.ended: dict[str, tuple[float, int]] = {}
        """By the path of a subscriber: when its end was answered, and the next body after that."""
        self._next = 0
        self._chance = chance
        self._left = ""

    async def round(self, http: httpx.AsyncClient, server: ServerProcess, passing: str) -> None:
        """Subscribe one who passes, post, unsubscribe it, and kill the server at any instant."""
        loop = asyncio.get_running_loop()
        if self._left:  # a kill came between
            await http.delete(self._left)
        self._left = f"{_SUBSCRIPTIONS}/{await _subscribe(http, passing)}"
        unsubscribe_at = loop.time() + self._chance.uniform(0.05, 0.5)
        killing = loop.call_later(self._chance.uniform(0.3, 1.2), server.kill)
        try:
            while True:
                await self._post(http)
                if self._left and loop.time() >= unsubscribe_at:
                    answer = await http.delete(self._left)
                    assert answer.status_code == 204, answer.text
                    self._left = ""
                    path = "/" + passing.rpartition("/")[2]
                    self.ended[path] = loop.time(), self._next
                await asyncio.sleep(0.005)
        except httpx.TransportError:
            return
        finally:
            killing.cancel()

    async def _post(self, http: httpx.AsyncClient) -> None:
        first = self._next
        self._next += self._chance.randint(1, 3)
        bodies = range(first, self._next)
        answer = await http.post(
            "/v2/queues/q/messages",
            json={"messages": [{"body": body, "ttl": _TTL} for body in bodies]},
        )
        assert answer.status_code == 201, answer.text
        self.acknowledged.update(bodies)

    def check_ended(self, leaving: Receiver) -> float:
        """Nothing went to who had left; the seconds by which the latest request was read."""
        latest = 0.0
        for one in leaving.received:
            at, following = self.ended.get(one.path, (float("inf"), one.document["body"] + 1))
            assert one.document["body"] < following
            latest = max(latest, one.at - at)
        assert latest < _UNDER_WAY
        return latest


async def _subscribe(http: httpx.AsyncClient, url: str, *, ordered: bool = False) -> str:
    options = {"ordered": ordered, "_retry_policy": _AT_ONCE}
    made = await http.post(
        _SUBSCRIPTIONS, json={"subscriber": url, "ttl": _TTL, "options": options}
    )
    assert made.status_code == 201, made.text
    identifier: str = made.json()["subscription_id"]
    return identifier


async def _slowly(_: web.Request, __: int) -> web.Response:
    await asyncio.sleep(0.02)
    return web.Response(status=204)


async def _now_and_then(_: web.Request, number: int) -> web.Response:
    return web.Response(status=503 if number % 7 == 3 else 204)


def _bodies(receiver: Receiver) -> set[int]:
    return {one.document["body"] for one in receiver.received}
