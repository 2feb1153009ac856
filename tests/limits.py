"""A limit of time for each test: past it the test fails with the stacks of all that runs.

pytest-timeout reads the limits (`timeout` in pyproject.toml, `@pytest.mark.timeout(300)`) and sets
the timer. The alarm is ours: it also tells the tasks of asyncio, it ends an asynchronous test
without the ones after it, it repeats where something swallowed it, and it holds for what follows a
failure too.
"""

import asyncio
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterable
from types import FrameType
from typing import Protocol

import pytest

REPEATED = 30.0
"""Seconds after which the alarm comes again: the first may have ended a task in the background."""


SERVERS = 180.0
"""Seconds in which a fixture of the session starts, and in which all of them end."""

LONGER = {
    "tests/spark/": 300,
    "tests/rabbitmq/": 180,
    "tests/contract/test_model.py": 300,
    "tests/contract/": 180,
    "tests/drivers/": 180,
    "tests/api/test_openapi.py": 300,
    "tests/service/test_killed.py": 180,
    "tests/compat/": 180,
    "tests/test_bounded.py": 180,
}
"""Limits of files and folders whose tests take long; a test's own mark comes first."""

INNERMOST = 25
"""Frames of a stack that are shown: those of pytest are left out."""


class Limit(Protocol):
    """What pytest-timeout says of a test's limit."""

    @property
    def timeout(self) -> float:
        """The limit in seconds, the test's fixtures included."""


class _Phase:
    """Whether a test or its fixtures run: an alarm in a report would end the whole run."""

    runs = False


class LimitExceededError(BaseException):
    """Ends the event loop of a test that waits: anyio then cancels the test, and no later one."""


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Limit) -> bool | None:
    """Set the alarm of a test; leave it to pytest-timeout where a debugger may stop the test."""
    if item.config.getoption("usepdb") or not hasattr(signal, "SIGALRM"):
        return None

    def ring(_number: int, frame: FrameType | None) -> None:
        if not _Phase.runs:
            return
        message = f"{item.nodeid} took longer than {settings.timeout:g} s\n\n{stacks(frame)}"
        if _waits():
            raise LimitExceededError(message)
        pytest.fail(message, pytrace=False)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, min(settings.timeout, REPEATED))
    return True


def mark_longer(items: Iterable[pytest.Item]) -> None:
    """Give the tests of LONGER their limits, where they have none of their own."""
    for item in items:
        seconds = next((LONGER[start] for start in LONGER if item.nodeid.startswith(start)), None)
        if seconds and not item.get_closest_marker("timeout"):
            usual = item.config.getoption("timeout") or 0
            item.add_marker(pytest.mark.timeout(max(seconds, usual)))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object],
) -> Generator[None, object, object]:
    """Start a server of the session in a time of its own: whichever test comes first waits."""
    left, again = signal.getitimer(signal.ITIMER_REAL)
    if fixturedef.scope != "session" or not left:
        return (yield)
    signal.setitimer(signal.ITIMER_REAL, SERVERS, again)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, again)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Let the alarm ring while fixtures begin."""
    return (yield from _ringing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Let the alarm ring while a test runs."""
    return (yield from _ringing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Let it ring while fixtures end; the servers of the session end with the last test."""
    if nextitem is None:
        renew()
    return (yield from _ringing())


def _ringing() -> Generator[None, object, object]:
    _Phase.runs = True
    try:
        return (yield)
    finally:
        _Phase.runs = False


def renew() -> None:
    """Give the end of the session's servers its time anew: another worker still uses one."""
    left, again = signal.getitimer(signal.ITIMER_REAL)
    if left:
        signal.setitimer(signal.ITIMER_REAL, SERVERS, again)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """Keep the alarm when a test has failed, because its fixtures are still to be ended."""
    return None if item.config.getoption("usepdb") else True


def pytest_runtest_logfinish() -> None:
    """Switch the alarm off when a test and its fixtures have ended."""
    if hasattr(signal, "SIGALRM"):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def stacks(frame: FrameType | None) -> str:
    """Write the stacks of the main thread (in `frame`), of the other threads and of the tasks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = sys._current_frames()
    written = [
        f"--- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(found, INNERMOST))}"
        for ident, found in {**others, threading.get_ident(): frame}.items()
    ]
    return "\n".join([*written, *(f"--- task {_stack_of(task)}" for task in _tasks())])


def _stack_of(task: "asyncio.Task[object]") -> str:
    """Follow what a task awaits down to what keeps it; asyncio itself tells the outermost only."""
    lines = [task.get_name() + "\n"]
    awaited: object = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        lines += traceback.format_stack(frame, 1) if frame else [f"  {awaited!r}\n"]
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "".join(lines)


def _tasks() -> list["asyncio.Task[object]"]:
    try:
        return sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    except RuntimeError:  # no event loop runs
        return []


def _waits() -> bool:
    """Tell whether the main thread waits in an event loop, outside of all tasks."""
    try:
        return asyncio.current_task() is None
    except RuntimeError:  # no event loop runs
        return False
