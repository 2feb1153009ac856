"""A store in a directory of its own; its records are compared with its memory afterwards."""

from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be slow: SlateDB is given up when it hangs for ten seconds."""
    if find_spec("slatedb"):
        engine = import_module("zaqar_lite.storage.opendata.slatedb")
        monkeypatch.setattr(engine, "_PATIENCE_LOCAL", 120.0)
        monkeypatch.setattr(engine.SlateDbEngine, "patience", 120.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    await opened.messages.open()
    yield opened
    if opened.db._users:
        await check_database(opened.db)
    await opened.messages.close()
