"""A test that hangs, and a worker that dies, are named, and the run goes on to its end."""

import os
import sys
from pathlib import Path

import pytest

from tests.services.process import run_program

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(180)
HOOKS = """
import pytest
from tests import scheduling
from tests.limits import *

@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"

def pytest_xdist_make_scheduler(config, log):
    return scheduling.make_scheduler(config, log)
"""
HANGING = """
import asyncio, time
import pytest

pytestmark = [pytest.mark.timeout(1), pytest.mark.anyio]

@pytest.fixture(scope="module")
async def shared():
    yield

async def test_that_waits_for_ever(shared):
    async def wait_for_nobody():
        await asyncio.Event().wait()
    await wait_for_nobody()

async def test_whose_task_blocks_the_loop(shared):
    async def block():
        time.sleep(50)
    task = asyncio.create_task(block())
    await asyncio.Event().wait()

def test_that_blocks():
    time.sleep(50)

@pytest.fixture
def never_ended():
    yield
    time.sleep(50)

def test_whose_fixture_hangs_after_a_failure(never_ended):
    assert False

async def test_after_them(shared):
    pass
"""
DYING = """
import os, time

def test_before():
    pass

def test_that_dies():
    os._exit(1)

def test_after():
    pass
"""


def run_pytest(folder: Path, *words: str, **files: str) -> str:
    """Run files of tests with our hooks, in a process of their own; return what it prints."""
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 60\nmarkers = slow\n")
    (folder / "conftest.py").write_text(HOOKS)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ran = run_program(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def test_a_test_that_hangs_fails_with_all_stacks_and_the_next_one_passes(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, "-n", "1", "--dist", "loadfile", test_hanging=HANGING)
    assert "4 failed, 1 passed, 1 error" in printed
    assert "test_that_waits_for_ever took longer than 1 s" in printed
    assert "--- thread MainThread" in printed
    assert "await wait_for_nobody()" in printed
    assert "await asyncio.Event().wait()" in printed
    assert "time.sleep(50)" in printed


def test_a_worker_that_dies_names_its_test_and_the_others_run(tmp_path: Path) -> None:
    files = {f"test_{number}": "def test(): pass" for number in range(3)}
    printed = run_pytest(tmp_path, "-n", "2", "--dist", "loadfile", test_dying=DYING, **files)
    assert "1 failed, 5 passed" in printed
    assert "crashed while running 'test_dying.py::test_that_dies'" in printed
