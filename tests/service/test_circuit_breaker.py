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


async def test_of_too_many_endpoints_an_idle_one_is_forgotten_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 1)
    known = Endpoints()
    busy = known.of("p", "https://busy.example/a")
    assert await busy.enter(0)
    idle = known.of("p", "https://idle.example/a")
    assert known.of("p", "https://BUSY.example/b") is busy
    known.of("p", "https://new.example/a")
    assert known.of("p", "https://busy.example/a") is busy
    assert known.of("p", "https://idle.example/a") is not idle


async def test_endpoints_beyond_the_bound_are_forgotten_as_soon_as_they_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 3)
    known = Endpoints()
    busy = [known.of("p", f"https://busy-{n}.example/") for n in range(3)]
    assert all([await one.enter(0) for one in busy])
    for n in range(3, 10):
        busy.append(known.of("p", f"https://busy-{n}.example/"))
        assert await busy[-1].enter(0)
    assert len(known._known) == 10
    for one in busy:
        one.leave(None)
    known.of("p", "https://new.example/")
    assert len(known._known) == 3
