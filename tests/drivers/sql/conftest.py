"""A store in a file, on an ordinary disk or one that fails; its tables are looked at in the end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.disk import Disk, failing_disk
from tests.drivers.sql.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """Both stores, open."""
    async with Store(tmp_path / "data") as opened:
        yield opened
        await check_database(opened.db)


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[tuple[Store, Disk]]:
    """A store, and the disk below it that can fail; its tables are looked at in the end."""
    with failing_disk() as failing:
        async with Store(tmp_path / "data") as opened:
            yield opened, failing
            failing.hook = None
            await check_database(opened.db)
