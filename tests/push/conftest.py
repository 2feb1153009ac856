"""A server that may deliver to receivers of this machine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from tests.api.conftest import Api, MakeApi, make_api  # noqa: F401 - a fixture

T = TypeVar("T")
LOOPBACK = "127.0.0.0/8"


async def until(look: Callable[[], Awaitable[T]], seconds: float = 20) -> T:
    """Look again and again until there is something."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.05)


@pytest.fixture
async def api(make_api: MakeApi) -> AsyncIterator[Api]:  # noqa: F811 - the fixture above
    async with make_api(delivery_allowed=LOOPBACK) as made:
        yield made
