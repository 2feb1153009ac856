"""The pytest plugin: the guide's example, run by pytest as its readers run it."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.client.test_documentation import blocks
from tests.docs.pages import ROOT
from tests.services.process import run_program
from zaqar_lite import testing
from zaqar_lite.testing import ZaqarClock

OTHERS = """
def test_a_test_begins_without_queues(zaqar_server):
    with zaqar_server.client() as client:
        assert list(client.list_queues()) == []


async def _count(server):
    async with server.async_client() as client:
        await client.post("q", 1)
        return (await client.stats("q")).total


def test_the_async_client_works_too(zaqar_server):
    import asyncio
    assert asyncio.run(_count(zaqar_server)) == 1
"""


def test_the_example_of_the_guide_passes_in_a_run_of_its_own(tmp_path: Path) -> None:
    (example,) = (block for block in blocks() if "zaqar_clock" in block)
    (tmp_path / "test_mails.py").write_text(example + OTHERS)
    words = ["-m", "pytest", "-q", "-p", "zaqar_lite.testing", "-p", "no:cacheprovider"]
    # Only ours: the other plugins of this environment take ten seconds to import.
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {"ZAQAR_LITE_PORT": "1"}
    done = run_program([sys.executable, *words, str(tmp_path)], cwd=tmp_path, env=environment)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_a_wheel_tells_pytest_of_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {testing.__name__: testing.__name__}


def test_time_goes_forwards_only(tmp_path: Path) -> None:
    clock = ZaqarClock(tmp_path / "offset")
    clock.advance(1.5)
    clock.advance(0.5)
    assert (tmp_path / "offset").read_text() == "2000"
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-1)
