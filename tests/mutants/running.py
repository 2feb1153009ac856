"""Runs chosen tests with a change: in a fork of one session of pytest that has collected all tests.

In the fork the functions of the changed file get the code of the changed source, so that nothing
is imported again. A change outside of functions takes effect at import only: its tests run in a
process of their own.
"""

import ast
import gc
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn

import pytest

from tests.mutants.changes import Change

OPTIONS = ("-x", "-q", "-s", "-p", "no:cacheprovider")
NO_ANSWER = "no answer"
_LONGEST = 30
"""Seconds that one test may take."""
_LEAVING = 20
"""Seconds that a run gets to stop its servers when its time is over."""


class _Forked(BaseException):
    """Leaves the work of the parent: this process is to run the tests of its session."""


def _raise(*_: object) -> NoReturn:
    raise TimeoutError


class Chosen:
    """A plugin that runs some of the collected tests in its order, and keeps what fails first."""

    def __init__(self, names: Sequence[str]) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self.failed = ""

    def of(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the chosen ones."""
        found = [item for item in items if item.nodeid in self._place]
        return sorted(found, key=lambda item: self._place[item.nodeid])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen ones."""
        items[:] = self.of(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Let a test fail that does not end: a change may have made a loop endless."""
        signal.signal(signal.SIGALRM, _raise)
        # Again and again: hypothesis takes the first for a failure, and looks for smaller ones.
        signal.setitimer(signal.ITIMER_REAL, _LONGEST, 1)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the name of a file that cannot be imported."""
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name of the first test that fails."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    def verdict(self, code: int) -> str:
        """Tell what failed; "" where all passed."""
        if self.failed or code in {0, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return self.failed
        return f"exit code {int(code)}"


class Warm:
    """A session that has collected the tests of a copy of the checkout."""

    def __init__(self, place: Path, log: Path, work: Callable[["Warm"], None]) -> None:
        self._place = place
        self._log = log
        self._work = work
        self._items: list[pytest.Item] = []
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)
        self._chosen: Chosen | None = None
        self._answer = -1

    def run(self, paths: Sequence[str]) -> None:
        """Collect the tests, and do the work."""
        pytest.main([*OPTIONS, "-m", "not slow", *paths], plugins=[self])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Do the work instead of the tests; in a fork, run those that it has chosen."""
        if session.testsfailed:
            return None
        self._items = list(session.items)
        gc.unfreeze()  # the tests' own hook has set them aside
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                self._functions[thing.__code__.co_filename].append(thing)
        gc.collect()
        gc.freeze()
        try:
            self._work(self)
        except _Forked:
            assert self._chosen is not None
            session.items = self._chosen.of(self._items)
            session.config.pluginmanager.register(self._chosen)
            return None
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """End a fork: what its tests noticed is known, and pytest's folders are its parent's."""
        if self._chosen is not None:
            os.write(self._answer, (self._chosen.verdict(exitstatus) or "passed").encode())
            os._exit(0)

    def failing(self, names: Sequence[str], change: Change, patience: float) -> str:
        """Run tests with a change that is in the file, until one fails; "" where all pass."""
        if change.path.endswith(".py") and not _is_in_function(change, self._place):
            return _failing_apart(self._place, names, self._log, patience)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._become(names, change, writer)
        os.close(writer)
        over = _wait(pid, patience)
        with os.fdopen(reader, encoding="utf-8") as answer:
            failed = answer.read()
        if over:
            return "no end in time"
        return "" if failed == "passed" else failed or NO_ANSWER

    def _become(self, names: Sequence[str], change: Change, answer: int) -> NoReturn:
        written = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, 1)
        os.dup2(written, 2)
        self._chosen, self._answer = Chosen(names), answer
        path = self._place / change.path
        if path.suffix == ".py":
            codes = {
                (code.co_qualname, code.co_firstlineno): code
                for code in _codes(compile(path.read_bytes(), str(path), "exec"))
            }
            for function in self._functions[str(path)]:
                old = function.__code__
                function.__code__ = codes[old.co_qualname, old.co_firstlineno]
        raise _Forked


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _is_in_function(change: Change, place: Path) -> bool:
    """Whether a change is in the body of a function, not in its defaults or decorators."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno > node.lineno
        and node.body[0].lineno <= change.line <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse((place / change.path).read_bytes()))
    )


def _wait(pid: int, patience: float) -> bool:
    """Wait for a run; whether it had to be ended."""
    deadline = time.monotonic() + patience
    over = False
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            # An interrupt lets pytest stop the servers that it has started.
            os.kill(pid, signal.SIGKILL if over else signal.SIGINT)
            over, deadline = True, time.monotonic() + _LEAVING
        time.sleep(0.02)
    return over


def _failing_apart(place: Path, names: Sequence[str], log: Path, patience: float) -> str:
    """Run tests in a process of their own."""
    order, answer = log.with_suffix(".names"), log.with_suffix(".answer")
    order.write_text("\n".join(names), encoding="utf-8")
    answer.unlink(missing_ok=True)
    words = [sys.executable, "-m", "tests.mutants.running", str(order), str(answer)]
    with log.open("wb") as file:
        try:
            subprocess.run(
                words,
                cwd=place,
                # Byte code is found by second and size, which two changes may have in common.
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=file,
                stderr=file,
                timeout=patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "no end in time"
    return answer.read_text(encoding="utf-8") if answer.exists() else NO_ANSWER


def _main(order: str, answer: str) -> None:
    names = Path(order).read_text(encoding="utf-8").splitlines()
    chosen = Chosen(names)
    files = dict.fromkeys(name.partition("::")[0] for name in names)
    code = pytest.main([*OPTIONS, *files], plugins=[chosen])
    Path(answer).write_text(chosen.verdict(code), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
