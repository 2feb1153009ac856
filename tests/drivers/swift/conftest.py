"""Fixtures: stores on the real Swift, alone or shared, with or without the faulty proxy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from tests.contract.stores import DriverCase, Stores
from tests.contract.subject import QueueUnderTest
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.services import SwiftServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions


def _uri(request: pytest.FixtureRequest, _: Path) -> str:
    server: SwiftServer = request.getfixturevalue("swift_server")
    return f"{server.url}?prefix=alone-{uuid4().hex[:12]}"


ALONE = DriverCase("swift-alone", "swift", _uri, 2)
"""The driver without a coordination URL."""


class OpenSwift(Protocol):
    """The type of the `open_swift` fixture."""

    async def __call__(
        self, url: str | None = None, *, coordination_url: str | None = None, options: str = ""
    ) -> Stores:
        """Open stores at a URL, else at the real Swift; all of a test share one prefix."""


@pytest.fixture
async def open_swift(swift_server: SwiftServer) -> AsyncIterator[OpenSwift]:
    """A function that opens stores; all are closed with the test."""
    opened: list[Stores] = []
    prefix = f"test-{uuid4().hex[:12]}"

    async def start(
        url: str | None = None, *, coordination_url: str | None = None, options: str = ""
    ) -> Stores:
        uri = f"{url or swift_server.url}?prefix={prefix}{options}"
        extra = {"coordination_url": coordination_url} if coordination_url else {}
        return await Stores.open(ALONE, uri, Clock(), StoreOptions(extra=extra), opened)

    yield start
    for stores in reversed(opened):
        await stores.close()


@pytest.fixture
def proxy(swift_server: SwiftServer) -> Iterator[FaultyProxy]:
    """A proxy in front of Swift that does as it is told."""
    proxy = FaultyProxy(swift_server).start()
    yield proxy
    proxy.stop()


@pytest.fixture
async def queue(open_swift: OpenSwift, proxy: FaultyProxy) -> QueueUnderTest:
    """A queue of a server that is alone and reaches Swift through the proxy."""
    stores = await open_swift(proxy.url, options="&timeout=3")
    return a_queue(stores)


def a_queue(stores: Stores, name: str = "queue") -> QueueUnderTest:
    """A queue of its own."""
    return QueueUnderTest(stores, QueueRef(f"project-{uuid4().hex[:12]}", name))
