"""The drivers under test, and how each is opened.

`ZAQAR_TEST_DRIVERS=memory,redis` chooses drivers by name, as `pytest -k redis` does. What only one
driver has to check after every test is a function `after_test(stores)` in
`tests/drivers/<package>/contract_hooks.py`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest

from tests.services import MongoServer, RedisServer, SwiftServer
from tests.services.process import missing
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import Capability, StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.registry import create_stores

MakeUri = Callable[[pytest.FixtureRequest, Path], str]


@dataclass(frozen=True)
class DriverCase:
    """A driver as the suite runs it: where it is, and how patient the model test may be.

    `make_uri` gets the test's request and a directory that is not there yet; `make_extra` the
    driver's own options. `size_divisor` makes the batches of `test_sizes.py` smaller where they
    would take minutes. After `idle_sweeps` that found nothing another one may find something: each
    is of a page.
    """

    name: str
    package: str
    make_uri: MakeUri
    model_examples: int
    make_extra: Callable[[Path], Mapping[str, Any]] = field(default=lambda _: {})
    size_divisor: int = 1
    idle_sweeps: int = 0


def _redis(request: pytest.FixtureRequest, _: Path) -> str:
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


def _mongodb(request: pytest.FixtureRequest, _: Path) -> str:
    server: MongoServer = request.getfixturevalue("mongodb_server")
    return server.url


def _swift(request: pytest.FixtureRequest, _: Path) -> str:
    server: SwiftServer = request.getfixturevalue("swift_server")
    # A sweep goes round all queues of a prefix: those of other tests would be swept too.
    return f"{server.url}?prefix=test-{uuid4().hex[:12]}"


CASES: tuple[DriverCase, ...] = (
    DriverCase("memory", "sql", lambda *_: "memory://", 150),
    DriverCase("embedded", "sql", lambda _, path: f"embedded://{path}", 40),
    DriverCase(
        "opendata-slatedb",
        "opendata",
        lambda _, path: f"opendata+slatedb://{path}",
        15,
        size_divisor=2,
    ),
    DriverCase("redis", "redis", _redis, 40),
    DriverCase("mongodb", "mongodb", _mongodb, 6, size_divisor=100),
    DriverCase(
        "swift",
        "swift",
        _swift,
        4,
        lambda path: {"coordination_url": f"file://{path}/locks"},
        size_divisor=100,
    ),
)


def chosen_cases() -> list[DriverCase]:
    """The drivers of this run."""
    names = {name.strip() for name in os.environ.get("ZAQAR_TEST_DRIVERS", "").split(",")} - {""}
    unknown = names - {case.name for case in CASES}
    if unknown:
        raise pytest.UsageError(f"ZAQAR_TEST_DRIVERS names unknown drivers: {sorted(unknown)}")
    return [case for case in CASES if not names or case.name in names]


@dataclass(frozen=True)
class Stores:
    """The two stores of one driver, opened, with the clock that moves their time."""

    case: DriverCase
    uri: str
    clock: Clock
    options: StoreOptions
    messages: MessageStore
    management: ManagementStore
    opened: list["Stores"]
    """All that the test has opened; closed when it is over."""

    @classmethod
    async def open(
        cls,
        case: DriverCase,
        uri: str,
        clock: Clock,
        options: StoreOptions,
        opened: list["Stores"],
    ) -> Self:
        """Open a driver's stores; without its library the test skips, or fails in CI."""
        try:
            messages, management = create_stores(uri, clock=clock, options=options)
        except ConfigurationError as exc:
            if "needs the Python package" in str(exc):
                missing(f"the library of the {case.name} store", str(exc))
            raise
        stores = cls(case, uri, clock, options, messages, management, opened)
        opened.append(stores)
        await messages.open()
        await management.open()
        return stores

    async def second(self) -> "Stores":
        """Open another pair over the same data, as a second server process would (SHARED)."""
        self.need(Capability.SHARED)
        return await Stores.open(self.case, self.uri, self.clock, self.options, self.opened)

    async def peers(self, count: int) -> list["Stores"]:
        """Pairs of stores that race: over one data where the store is shared, else one pair."""
        if Capability.SHARED not in self.messages.capabilities:
            return [self] * count
        return [self, *[await self.second() for _ in range(count - 1)]]

    def need(self, capability: Capability) -> None:
        """Skip the test of a promise that this driver does not make."""
        if capability not in self.messages.capabilities:
            pytest.skip(f"{self.case.name} does not declare {capability.value}")

    async def close(self) -> None:
        """Close both stores."""
        await self.messages.close()
        await self.management.close()


async def run_hook(stores: Stores) -> None:
    """Call what this driver alone checks after every test, if it has such a hook."""
    name = f"tests.drivers.{stores.case.package}.contract_hooks"
    if find_spec(f"tests.drivers.{stores.case.package}") and find_spec(name):
        await import_module(name).after_test(stores)
