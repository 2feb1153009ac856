"""Cases of a test that mostly wait, run beside each other as one test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest
from _pytest.mark import ParameterSet

from tests.contract.stores import DriverCase, Stores
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.services import SwiftServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions

AT_ONCE = 4
"""More would make Swift slower than the short timeouts of the tests."""


def _uri(request: pytest.FixtureRequest, _: Path) -> str:
    server: SwiftServer = request.getfixturevalue("swift_server")
    return f"{server.url}?prefix=alone-{uuid4().hex[:12]}"


ALONE = DriverCase("swift-alone", "swift", _uri, 2, size_divisor=100, idle_sweeps=20)
"""The driver without a coordination URL; its tests list eight entries a page."""


class OpenSwift(Protocol):
    """The type of the `open_swift` fixture."""

    async def __call__(
        self, url: str | None = None, *, coordination_url: str | None = None, options: str = ""
    ) -> Stores:
        """Open stores at a URL, else at the real Swift; all of a test share one prefix."""


@asynccontextmanager
async def opening(server: SwiftServer) -> AsyncIterator[OpenSwift]:
    """Give a function that opens stores under a prefix of its own; all are closed at the end."""
    opened: list[Stores] = []
    prefix = f"test-{uuid4().hex[:12]}"

    async def start(
        url: str | None = None, *, coordination_url: str | None = None, options: str = ""
    ) -> Stores:
        uri = f"{url or server.url}?prefix={prefix}{options}"
        extra = {"coordination_url": coordination_url} if coordination_url else {}
        return await Stores.open(ALONE, uri, Clock(), StoreOptions(extra=extra), opened)

    try:
        yield start
    finally:
        for stores in reversed(opened):
            await stores.close()


def together(
    cases: Iterable[ParameterSet],
) -> Callable[[Callable[..., Awaitable[None]]], Callable[[SwiftServer], Awaitable[None]]]:
    """Make one test of the cases of a test, each with stores, prefix and proxy of its own.

    A write whose answer is lost is waited for, 2.5 s at least: one after the other the cases take
    minutes, in which nothing happens. A failure names its case.
    """

    def decorate(
        test: Callable[..., Awaitable[None]],
    ) -> Callable[[SwiftServer], Awaitable[None]]:
        async def all_cases(swift_server: SwiftServer) -> None:
            few = asyncio.Semaphore(AT_ONCE)

            async def run(case: ParameterSet) -> None:
                async with few, opening(swift_server) as open_swift:
                    proxy = FaultyProxy(swift_server).start()
                    try:
                        await test(open_swift, proxy, *case.values)
                    except BaseException as failure:
                        failure.add_note(f"the case {case.id}")
                        raise
                    finally:
                        proxy.stop()

            async with asyncio.TaskGroup() as tasks:
                for case in cases:
                    tasks.create_task(run(case))

        all_cases.__name__, all_cases.__doc__ = test.__name__, test.__doc__
        return all_cases

    return decorate
