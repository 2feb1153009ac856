"""Child processes of the test run: start, wait until ready, end, and never leave one behind."""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self, TextIO

import httpx
import pytest

from zaqar_lite.bench import machine

# Below the range that the kernel hands out to outgoing connections, so that a port found free
# stays free until the server that it was found for has bound it.
_PORTS = range(20_000, 32_000)
_reserved: dict[int, TextIO] = {}
"""The lock file of each port that this process was given; locked until it ends."""

# Debian keeps servers here, which an ordinary user's PATH leaves out.
SYSTEM_PATH: tuple[str, ...] = ("/usr/sbin", "/usr/local/sbin")


def missing(what: str, remedy: str) -> NoReturn:
    """Skip the test because `what` is not here; fail it where CI is set."""
    message = f"{what} is missing: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def skip_in_quick_run() -> None:
    """Skip what starts a program, or installs one, in `tests/run --quick`."""
    if "ZAQAR_TEST_QUICK" in os.environ:
        pytest.skip("starts a program, which tests/run --quick leaves out")


def find_program(name: str, package: str, *places: str) -> str:
    """Find a program on the PATH and in `places`; without it the test skips, or fails in CI."""
    path = os.pathsep.join([*places, os.environ.get("PATH", ""), *SYSTEM_PATH])
    found = shutil.which(name, path=path)
    if found is None:
        missing(name, f"apt-get install {package} (tests/run does it as root)")
    return found


def run_program(
    command: Sequence[Any], *, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, which the limit of the test bounds, and keep what it prints."""
    return subprocess.run(command, check=check, capture_output=True, text=True, **options)


def free_ports(count: int) -> tuple[int, ...]:
    """Find `count` loopback ports that nobody listens on; no port is given out twice.

    Not to another run on this machine either, as long as this process lives: a server that was
    killed would not come back on a port that another one took meanwhile.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_PORTS)
        if _reserve(port) and not listens(port) and _can_bind(port):
            found.append(port)
    return tuple(found)


def _reserve(port: int) -> bool:
    """Lock a port's file; tell whether nobody had it."""
    if port in _reserved:
        return False
    directory = Path(tempfile.gettempdir()) / f"zaqar-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    lock = (directory / str(port)).open("w", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _reserved[port] = lock
    return True


def free_port() -> int:
    """Find one free loopback port."""
    return free_ports(1)[0]


def listens(port: int) -> bool:
    """Tell whether somebody accepts connections on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    """Tell whether a GET of a URL is answered with 200."""
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Process:
    """One program in a session of its own; ending it ends all that it started.

    Standard output and error go to the file `log`. When the test run itself is killed the kernel
    ends the program too (Linux: parent-death signal), except for those started by other threads
    than the main one, because that signal also comes when the starting thread ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self.log_path = log
        self._cwd = cwd
        self._env = env
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program; it must not be running."""
        if self.alive():
            raise RuntimeError(f"{self.command[0]} is running already")
        skip_in_quick_run()
        command = self.command
        guard = shutil.which("setpriv")
        if guard and threading.current_thread() is threading.main_thread():
            command = [guard, "--pdeathsig", "TERM", "--", *command]
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=self._env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        if self._popen is None:
            raise RuntimeError(f"{self.command[0]} was not started")
        return self._popen.pid

    def alive(self) -> bool:
        """Tell whether the program runs."""
        return self._popen is not None and self._popen.poll() is None

    def log(self) -> str:
        """Read what the program wrote."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def terminate(self, timeout: float = 30) -> int | None:
        """Ask the program to end (SIGTERM), kill it after `timeout` seconds; return its status."""
        if self._popen is None:
            return None
        if self._popen.poll() is None:
            self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)
        self.kill()
        return self._popen.returncode

    def kill(self) -> None:
        """End the program and its descendants at once (SIGKILL), as a crash would."""
        if self._popen is None:
            return
        # Some servers lead a session of their own, where the signal to the group misses them.
        started = machine.descendants(self._popen.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()


def wait_until(
    ready: Callable[[], bool], processes: Sequence[Process], *, timeout: float = 120
) -> None:
    """Wait until `ready()`; raise with the programs' own words when one ends or time runs out."""
    deadline = time.monotonic() + timeout
    while not ready():
        dead = [process for process in processes if not process.alive()]
        if dead or time.monotonic() > deadline:
            words = "\n".join(
                f"--- {' '.join(process.command[:3])} ...\n{process.log()[-2000:]}"
                for process in (dead or processes)
            )
            why = "ended instead of starting" if dead else f"not ready after {timeout:.0f} s"
            raise RuntimeError(f"{why}:\n{words}")
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A server that runs: its URL and, when it is our own, its processes and data directory."""

    url: str
    data: Path | None = None
    processes: tuple[Process, ...] = field(default=(), repr=False)
    ready: Callable[[], bool] = field(default=lambda: True, repr=False)

    def start(self) -> Self:
        """Start every process that does not run and wait until the service answers."""
        try:
            for process in self.processes:
                if not process.alive():
                    process.start()
            wait_until(self.ready, self.processes)
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """End every process at once (SIGKILL); the data stay."""
        self._must_be_ours()
        for process in self.processes:
            process.kill()

    def restart(self) -> None:
        """End what still runs, politely, and start again on the same data and ports."""
        self._must_be_ours()
        for process in reversed(self.processes):
            process.terminate()
        self.start()

    def stop(self) -> None:
        """End the service and remove its data; somebody else's server is left alone."""
        for process in reversed(self.processes):
            process.kill()  # its data go too, so there is nothing to end politely for
        if self.data is not None:
            shutil.rmtree(self.data, ignore_errors=True)

    def _must_be_ours(self) -> None:
        if not self.processes:
            raise RuntimeError(f"{self.url} is not ours to stop; start one of your own")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_data_directory(kind: str) -> Path:
    """Make a temporary directory for a server's data."""
    return Path(tempfile.mkdtemp(prefix=f"zaqar-{kind}-"))
