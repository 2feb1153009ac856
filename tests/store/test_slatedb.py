"""The commands on SlateDB stores, which work on tables that are filled from the records."""

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.services.process import missing
from tests.store.running import fill, on, store
from zaqar_lite.storage.opendata import create_engine
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A SlateDB store that is not there yet."""
    if find_spec("slatedb") is None:
        missing("the library of the SlateDB store", "pip install 'zaqar-lite[slatedb]'")
    return f"opendata+slatedb://{tmp_path / 'records'}"


def test_what_a_file_held_goes_through_slatedb(uri: str, tmp_path: Path, capsys: Capture) -> None:
    on(tmp_path / "data", fill)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert store("export", tmp_path / "data", str(first)) == 0
    assert store("import", uri, str(first)) == 0
    assert store("check", uri) == 0
    assert "\n0 problems; " in capsys.readouterr().out
    assert store("export", uri, str(second)) == 0
    assert store("import", tmp_path / "again", str(second)) == 0
    assert store("export", tmp_path / "again", str(third)) == 0
    assert second.read_text("utf-8") == third.read_text("utf-8")
    claimed = first.read_text("utf-8").replace('"claimed_until"', '"delayed_until"')
    assert sorted(second.read_text("utf-8").splitlines()) == sorted(claimed.splitlines())


def test_an_import_waits_longer_than_a_server(
    uri: str, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is one batch, of which a time-out would not say whether it was stored."""
    assert store("export", sample, tmp_path / "file") == 0
    waits: list[float] = []
    real = SlateDbEngine.commit

    async def commit(engine: SlateDbEngine, batch: Batch) -> None:
        waits.append(engine.patience)
        await real(engine, batch)

    monkeypatch.setattr(SlateDbEngine, "commit", commit)
    assert store("import", uri, str(tmp_path / "file")) == 0
    assert max(waits) >= 600


def test_an_import_does_not_wait_for_a_file_that_cannot_be_read(
    uri: str, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert store("export", sample, tmp_path / "file") == 0
    assert store("import", uri, str(tmp_path / "file")) == 0
    (table,) = (tmp_path / "records").rglob("compacted/*.sst")
    os.truncate(table, 5)
    monkeypatch.setattr(SlateDbEngine, "patience", 1.0)
    assert store("import", uri, str(tmp_path / "file")) == 2
    assert "The store can't be read: no answer in time." in capsys.readouterr().err


def test_a_record_that_cannot_be_read_is_named(uri: str, tmp_path: Path, capsys: Capture) -> None:
    on(tmp_path / "data", fill)
    assert store("export", tmp_path / "data", str(tmp_path / "file")) == 0
    assert store("import", uri, str(tmp_path / "file")) == 0

    async def damage() -> None:
        engine = create_engine(uri)
        await engine.open()
        key = keys.record_key("kind", "project", "name")
        await engine.commit(Batch({key: b"short"}, ()))
        await engine.close()

    asyncio.run(damage())
    capsys.readouterr()
    assert store("check", uri) == 2
    assert "kind 'name' of project 'project'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "export"])
def test_there_must_be_a_store(command: str, uri: str, tmp_path: Path, capsys: Capture) -> None:
    assert store(command, uri) == 2
    assert f"There is no store at {tmp_path / 'records'}." in capsys.readouterr().err
    assert not (tmp_path / "records").exists()
