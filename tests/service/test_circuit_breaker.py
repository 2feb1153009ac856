"""The window and the breaker of an endpoint that gets pushed messages."""

import asyncio

import pytest

from zaqar_lite.service.delivery import attempt as module
from zaqar_lite.service.delivery.attempt import Endpoint, Endpoints

pytestmark = pytest.mark.anyio


async def test_the_window_doubles_with_each_round_of_successes_up_to_64() -> None:
    endpoint, windows = Endpoint(), []
    for _ in range(8):
        windows.append(endpoint.window)
        assert all([await endpoint.enter(0) for _ in range(windows[-1])])
        assert not await endpoint.enter(0)
        for _ in range(windows[-1]):
            endpoint.leave(True)
    assert windows == [2, 4, 8, 16, 32, 64, 64, 64]


async def test_a_delivery_that_is_cancelled_as_its_place_comes_gives_it_back() -> None:
    endpoint = Endpoint()
    assert await endpoint.enter(0)
    assert await endpoint.enter(0)
    waiting = asyncio.create_task(endpoint.enter(60))
    await asyncio.sleep(0)
    endpoint.leave(None)
    waiting.cancel()
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], BaseException)
    assert await endpoint.enter(0)
    assert not await endpoint.enter(0)


async def test_after_five_failures_one_call_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTEST", 0.0)
    endpoint = Endpoint()
    for _ in range(5):
        assert await endpoint.enter(0)
        assert await endpoint.enter(0), "before that, the window counts"
        endpoint.leave(None)
        endpoint.leave(False)
    assert await endpoint.enter(0)
    assert not await endpoint.enter(0)
    endpoint.leave(True)
    assert all([await endpoint.enter(0), await endpoint.enter(0)])


async def test_a_host_and_a_queue_are_one_endpoint_each() -> None:
    known = Endpoints()
    assert known.of("p", "https://a.example/1") is known.of("p", "https://A.example/2")
    assert known.of("p", "https://a.example/1") is not known.of("q", "https://a.example/1")
    assert known.of("p", "queue:full") is known.of("p", "queue:full")
    assert known.of("p", "queue:full") is not known.of("p", "queue:other")
