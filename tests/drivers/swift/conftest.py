"""Fixtures: stores on the real Swift, alone or shared, with or without the faulty proxy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import OpenSwift, opening
from tests.services import SwiftServer
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.swift import connection


@pytest.fixture
async def open_swift(swift_server: SwiftServer) -> AsyncIterator[OpenSwift]:
    """A function that opens stores; all are closed with the test."""
    async with opening(swift_server) as start:
        yield start


@pytest.fixture
def proxy(swift_server: SwiftServer) -> Iterator[FaultyProxy]:
    """A proxy in front of Swift that does as it is told."""
    proxy = FaultyProxy(swift_server).start()
    yield proxy
    proxy.stop()


@pytest.fixture
def locks(tmp_path: Path) -> str:
    """The coordination URL of servers that share their store."""
    return f"file://{tmp_path}/locks"


@pytest.fixture
async def queue(open_swift: OpenSwift, proxy: FaultyProxy) -> QueueUnderTest:
    """A queue of a server that is alone and reaches Swift through the proxy."""
    stores = await open_swift(proxy.url, options="&timeout=3")
    return a_queue(stores)


@pytest.fixture
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write whose answer is lost is waited for 100 ms: a cut connection holds nothing back.

    A short `timeout` would shorten the wait too. But then a busy machine sends writes too late that
    are to succeed, and Swift refuses their signatures.
    """
    monkeypatch.setattr(connection, "_SLACK", 0.1 - connection.Fence(timeout=10)._validity)


def a_queue(stores: Stores, name: str = "queue") -> QueueUnderTest:
    """A queue of its own."""
    return QueueUnderTest(stores, QueueRef(f"project-{uuid4().hex[:12]}", name))
