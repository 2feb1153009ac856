"""Fixtures of the contract suite: every test runs once for each driver."""

from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from tests.contract.stores import DriverCase, Stores, chosen_cases, run_hook
from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.sql import database


class OpenStores(Protocol):
    """The type of the `open_stores` fixture."""

    async def __call__(
        self,
        *,
        max_messages: int = 10_000,
        max_idempotency_keys: int = 10_000,
        idempotency_window_ms: int = 600_000,
    ) -> Stores:
        """Open the driver's stores with these options; a store of its own where it is a file."""


@pytest.fixture(params=chosen_cases(), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> DriverCase:
    """The driver that the test runs on."""
    found: DriverCase = request.param
    return found


@pytest.fixture
def store_uri(request: pytest.FixtureRequest, case: DriverCase, tmp_path: Path) -> str:
    """The URI of the test's store; starts the driver's server when it is the first to ask."""
    return case.make_uri(request, tmp_path / "data")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be slow: the embedded store gives up what hangs for ten seconds."""
    monkeypatch.setattr(database, "PATIENCE", 120.0)
    if find_spec("slatedb"):
        engine = import_module("zaqar_lite.storage.opendata.slatedb")
        monkeypatch.setattr(engine.SlateDbEngine, "patience", 120.0)


@pytest.fixture
async def open_stores(
    request: pytest.FixtureRequest, case: DriverCase, store_uri: str, tmp_path: Path
) -> AsyncIterator[OpenStores]:
    """A function that opens the driver's stores; all are checked by its hook and closed."""
    opened: list[Stores] = []

    async def start(
        *,
        max_messages: int = 10_000,
        max_idempotency_keys: int = 10_000,
        idempotency_window_ms: int = 600_000,
    ) -> Stores:
        options = StoreOptions(
            idempotency_window_ms=idempotency_window_ms,
            max_idempotency_keys=max_idempotency_keys,
            max_messages=max_messages,
            extra=case.make_extra(tmp_path),
        )
        # A file belongs to one store at a time; a server's URI is the same whatever the path.
        uri = case.make_uri(request, tmp_path / f"data-{len(opened)}") if opened else store_uri
        return await Stores.open(case, uri, Clock(), options, opened)

    yield start
    try:
        if opened:
            await run_hook(opened[0])
    finally:
        for stores in reversed(opened):
            await stores.close()


@pytest.fixture
async def stores(open_stores: OpenStores) -> Stores:
    """The driver's stores with ordinary options."""
    return await open_stores()


@pytest.fixture
def project() -> str:
    """A project of the test's own."""
    return f"project-{uuid4().hex[:12]}"


@pytest.fixture
def queue(stores: Stores, project: str) -> QueueUnderTest:
    """A queue of the test's own, without a record."""
    return QueueUnderTest(stores, QueueRef(project, f"queue-{uuid4().hex[:12]}"))


@pytest.fixture
def other(stores: Stores, project: str) -> QueueUnderTest:
    """Another queue of the same project."""
    return QueueUnderTest(stores, QueueRef(project, f"other-{uuid4().hex[:12]}"))
