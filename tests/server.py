"""Our own server as a process: what the tests that need a real one start."""

import asyncio
import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.services.process import Process, free_port, run_program, wait_until

PING_HEADERS = {"Client-ID": "3381af92-2b9e-11e3-b191-71861300734c", "X-Project-Id": "ping"}


def environment() -> dict[str, str]:
    """Answer this process's environment without its ZAQAR_ variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ZAQAR_")}


def serve_in_vain(*words: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `zaqar-lite serve`, on some free port, that ends by itself."""
    return run_program(
        [sys.executable, "-m", "zaqar_lite.cli", "serve", "--port", "0", *map(str, words)],
        cwd=cwd,
        env=environment(),
    )


class ServerProcess:
    """`zaqar-lite serve` on a free loopback port, in a temporary working directory.

    `options` are further words of the command line. The environment is the caller's without its
    ZAQAR_ variables, plus `env`; `wrapper` are words before the command. It is a context manager;
    leaving it ends the server politely.
    """

    def __init__(
        self,
        store: str = "memory://",
        *options: str,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._home = Path(tempfile.mkdtemp(prefix="zaqar-server-"))
        self._process = Process(
            [
                *(*wrapper, sys.executable, "-m", "zaqar_lite.cli", "serve"),
                *("--port", str(self.port), "--store", store, *options),
            ],
            log=self._home / "log",
            cwd=self._home,
            env={**environment(), **(env or {})},
        )

    def start(self, *, timeout: float = 120, ready: int | None = 204) -> Self:
        """Start the server and wait until a ping is answered with `ready`; also after an end."""
        self._process.start()
        try:
            wait_until(lambda: self.ping() == ready, [self._process], timeout=timeout)
        except BaseException:
            self.close()
            raise
        return self

    def wait_for(self, happened: Callable[[], bool], *, timeout: float = 60) -> None:
        """Wait until something has happened; fail when the server ends before."""
        wait_until(happened, [self._process], timeout=timeout)

    @property
    def pid(self) -> int:
        """The id of the main process."""
        return self._process.pid

    def workers(self) -> list[int]:
        """The processes below it that serve; multiprocessing's own helper is none."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in map(int, children)}
        return [pid for pid, line in lines.items() if b"spawn_main" in line]

    def alive(self) -> bool:
        """Tell whether the main process runs."""
        return self._process.alive()

    def terminate(self, timeout: float = 30) -> int | None:
        """Ask the server to end (SIGTERM) and return its exit status."""
        return self._process.terminate(timeout)

    def kill(self) -> None:
        """End the server and its workers at once (SIGKILL), as a crash would."""
        self._process.kill()

    async def stop_for(self, seconds: float) -> None:
        """Let the main process stand still for a while (SIGSTOP), as a machine that swaps would."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Read what the server wrote to standard output and error."""
        return self._process.log()

    def close(self) -> None:
        """End the server and remove its working directory."""
        self.terminate()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.alive() else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def ping(self) -> int | None:
        """The status of a ping; None when there is no answer."""
        # A client of httpx costs as much CPU as a tenth of the start that is waited for.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/v2/ping", headers=PING_HEADERS)
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return None
