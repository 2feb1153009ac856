"""A plugin for pytest that records which functions of the package each test runs.

`-p tests.mutants.recording` with the file to write in ZAQAR_TEST_RECORD. An operation of the Lua
library counts as a function of its own. Functions, not lines: a test that enters a function costs
one call of Python for it, so a recorded run takes less than twice its time. Only what runs in
pytest's process counts.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

_PACKAGE = Path(__file__).parents[2] / "zaqar_lite"
_ROUTER = str(_PACKAGE / "storage/redis/router.py")

_entered: dict[int, CodeType] = {}
_operations: set[str] = set()
_numbers: dict[str, int] = {}
_tests: dict[str, tuple[float, list[int]]] = {}
_failed: set[str] = set()


def _notice(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event != "call":
        return
    # Code objects are slow to hash; while one is kept here, no other has its address.
    if id(code) not in _entered:
        _entered[id(code)] = code
    if code.co_name == "run" and code.co_filename == _ROUTER:
        _operations.add(f"operation {frame.f_locals['operation']}")


def _names() -> set[str]:
    prefix = f"{_PACKAGE}{os.sep}"
    found = {
        f"{code.co_filename.removeprefix(str(_PACKAGE.parent) + os.sep)} {code.co_qualname}"
        for code in list(_entered.values())  # threads of the test may still enter functions
        if code.co_filename.startswith(prefix) and code.co_name != "<module>"
    }
    return found | _operations


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record one test with its fixtures."""
    _entered.clear()
    _operations.clear()
    began = time.perf_counter()
    threading.settrace(_notice)
    sys.settrace(_notice)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        seconds = round(time.perf_counter() - began, 3)
        numbers = [_numbers.setdefault(name, len(_numbers)) for name in _names()]
        _tests[item.nodeid] = (seconds, numbers)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Forget a test that does not pass: it could notice nothing."""
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write what was recorded."""
    passed = {name: entry for name, entry in _tests.items() if name not in _failed}
    with Path(os.environ["ZAQAR_TEST_RECORD"]).open("w", encoding="utf-8") as file:
        json.dump({"functions": list(_numbers), "tests": passed}, file)
