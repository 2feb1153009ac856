"""A server that may deliver to receivers of this machine."""

from collections.abc import AsyncIterator

import pytest

from tests.api.conftest import Api, MakeApi, make_api  # noqa: F401 - a fixture

LOOPBACK = "127.0.0.0/8"


@pytest.fixture
async def api(make_api: MakeApi) -> AsyncIterator[Api]:  # noqa: F811 - the fixture above
    async with make_api(delivery_allowed=LOOPBACK) as made:
        yield made
