"""Background work goes on after errors and bugs, rests as told, and is woken."""

import asyncio

import pytest

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.service.background import Background

pytestmark = pytest.mark.anyio


class Work:
    """A step that fails as its list says, then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.steps = 0
        self.done = asyncio.Event()

    async def step(self) -> float:
        self.steps += 1
        if self.failures:
            raise self.failures.pop(0)
        self.done.set()
        return 3_600


async def test_neither_an_absent_store_nor_a_bug_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(Unavailable("away"), ZeroDivisionError(), Unavailable("again"))
    background = Background("the work", work.step, rest=0.01)
    background.start()
    async with asyncio.timeout(30):
        await work.done.wait()
    await background.stop()
    assert work.steps == 4
    assert "the work put off: away" in caplog.text
    assert "the work failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_it_rests_until_it_is_woken() -> None:
    work = Work()
    background = Background("the work", work.step, rest=0.01)
    background.start()
    async with asyncio.timeout(30):
        await work.done.wait()
        work.done.clear()
        background.wake()
        await work.done.wait()
    assert work.steps == 2
    await background.stop()
    await background.stop()


async def test_a_wake_at_the_moment_of_a_stop_does_not_keep_it_alive() -> None:
    work = Work()
    background = Background("the work", work.step, rest=0.01)
    background.start()
    async with asyncio.timeout(30):
        await work.done.wait()
        await asyncio.sleep(0)
        background.wake()
        await asyncio.sleep(0)
        await background.stop()
