"""A store in a directory of its own; its records are compared with its memory afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.conftest import patience
from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store

__all__ = ["patience"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    await opened.messages.open()
    yield opened
    if opened.db._users:
        await check_database(opened.db)
    await opened.messages.close()
