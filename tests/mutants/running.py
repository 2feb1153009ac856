"""Runs chosen tests in a copy of the checkout: each run is a fork of a process that is warm.

What is warm is pytest and the libraries. Nothing of the package or of the tests is kept over the
fork, so each run imports them from the copy, with the change in it.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

_WARM = ("fastapi", "httpx", "hypothesis", "schemathesis", "aiohttp", "redis", "sqlite3", "anyio")
_WARNINGS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""The libraries that are warm are not rewritten, which does not matter."""
_OURS = ("tests", "zaqar_lite")
_LEAVING = 20
"""Seconds that a run gets to stop its servers when its time is over."""


class Chosen:
    """A plugin that runs some of the collected tests, in their order, and keeps what failed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen ones."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place),
            key=lambda item: self._place[item.nodeid],
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the name of a file that cannot be imported."""
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name of the first test that fails."""
        if report.failed:
            self.failed = self.failed or report.nodeid


def warm() -> None:
    """Import what every run needs."""
    for name in _WARM:
        with suppress(ImportError):
            import_module(name)


def failing(place: Path, names: Sequence[str], log: Path, patience: float, drivers: str) -> str:
    """Run tests until one fails, and return its name; "" where all pass."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run(place, names, log, writer, drivers)
    os.close(writer)
    over = _wait(pid, patience)
    with os.fdopen(reader, encoding="utf-8") as answer:
        failed = answer.read()
    if failed == "":
        return "no end in time" if over else "no answer"
    return "" if failed == "passed" else failed


def _wait(pid: int, patience: float) -> bool:
    """Wait for a run; whether it had to be ended."""
    deadline = time.monotonic() + patience
    over = False
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            # An interrupt lets pytest stop the servers that it has started.
            os.kill(pid, signal.SIGKILL if over else signal.SIGINT)
            over, deadline = True, time.monotonic() + _LEAVING
        time.sleep(0.05)
    return over


def _run(place: Path, names: Sequence[str], log: Path, answer: int, drivers: str) -> None:
    try:
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(written, descriptor)
        os.chdir(place)
        os.environ |= {"PYTHONPATH": str(place), "ZAQAR_TEST_DRIVERS": drivers, "CI": "1"}
        sys.path[:] = [
            str(place),
            *(path for path in sys.path if path not in {"", str(Path.cwd())}),
        ]
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            del sys.modules[name]
        chosen = Chosen(names)
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        code = pytest.main(
            ["-x", "-q", "-p", "no:cacheprovider", *_WARNINGS, *files], plugins=[chosen]
        )
        interrupted = code == pytest.ExitCode.INTERRUPTED and not chosen.failed
        said = chosen.failed or ("passed" if code in {0, 5} else f"exit code {int(code)}")
        os.write(answer, b"" if interrupted else said.encode())
    except BaseException:  # noqa: BLE001 - it is the end of this process
        traceback.print_exc()
    finally:
        os._exit(0)
