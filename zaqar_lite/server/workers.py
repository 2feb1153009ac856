"""Several server processes on one socket: start them, replace one that dies, end them together.

`notify` tells systemd how the server does (`Type=notify`): one datagram, no library.
"""

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from zaqar_lite.domain.errors import ConfigurationError


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `WATCHDOG=1` to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(state.encode(), address.replace("@", "\0", 1))
    except OSError:
        return  # systemd does not listen any more: the server goes on without it


def watchdog_interval() -> float | None:
    """Half the seconds within which systemd expects a sign of life; None if it expects none."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    return int(microseconds) / 2e6 if microseconds.isdigit() and meant else None


logger = logging.getLogger("zaqar_lite")
NEVER_WORKS = 1
"""The exit code of a server, or a worker, whose configuration can never work."""
_NOT_NOW = 3
"""The exit code of a worker that could not start; a file may have been half written then."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HELD_BACK = (*_SIGNALS, signal.SIGHUP)
_LOOK = 1.0
_SHORT_LIFE = 1.0


class Workers:
    """Processes that each run `work(*arguments, number, tell=...)`, which answers an exit code.

    `number` counts from 0; a process that takes the place of another has its number. Each calls
    `tell` once it serves; `announce` is called when the first one does.

    They are spawned, not forked, so function and arguments are pickled. A worker ends when the
    parent process ends, even if that is killed: nothing else would end it. SIGHUP is passed on to
    every worker. A worker that starts later is sent SIGHUP too, because its arguments are those of
    the start. The parent alone reports to systemd's watchdog.
    """

    def __init__(
        self,
        count: int,
        announce: Callable[[], None],
        work: Callable[..., int],
        *arguments: object,
    ) -> None:
        self._missing = list(range(count))
        """The numbers of the workers that are to be started."""
        self._announce: Callable[[], None] | None = announce
        self._serving, self._told = multiprocessing.Pipe(duplex=False)
        self._work = (work, arguments)
        self._running: dict[BaseProcess, tuple[int, float]] = {}
        self._stopping = False
        self._is_renewed = False
        self._exit_code = 0

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until a worker ends because no worker can ever work.

        Answers the exit code: 0, or NEVER_WORKS.
        """
        for name in _SIGNALS:
            signal.signal(name, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
        life = watchdog_interval()
        while self._running or (self._missing and not self._stopping):
            for number in () if self._stopping else tuple(self._missing):
                self._start(number)
            if life is not None:
                notify("WATCHDOG=1")
            pause = _LOOK if life is None else min(life, _LOOK)
            sentinels = [process.sentinel for process in self._running]
            ended = wait([self._serving, *sentinels], timeout=pause)
            if self._serving in ended:
                self._take_word()
            for process in [one for one in self._running if one.sentinel in ended]:
                number, started = self._running.pop(process)
                self._take_end(process, number, lived=time.monotonic() - started)
        return self._exit_code

    def _start(self, number: int) -> None:
        process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(*self._work, number, self._told), name="worker"
        )
        # Signals are blocked until the worker has its own handlers. Python's default handlers would
        # print a traceback or end the worker.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            process.start()
            self._running[process] = number, time.monotonic()
            self._missing.remove(number)
        except OSError as exc:  # there is no memory for it, or no file
            logger.error("no worker can be started now: %s", exc)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        if self._is_renewed:
            _send(process, signal.SIGHUP)
        if self._stopping:
            process.terminate()

    def _take_word(self) -> None:
        """Note that a worker serves."""
        self._serving.recv()
        if self._announce is not None:
            self._announce()
            self._announce = None

    def _take_end(self, process: BaseProcess, number: int, *, lived: float) -> None:
        process.join()
        if self._stopping:
            return
        is_first = self._announce is not None  # then the others would fail as well
        if process.exitcode == NEVER_WORKS or (is_first and process.exitcode == _NOT_NOW):
            self._exit_code = NEVER_WORKS
            self._stop()
            return
        logger.error(
            "worker %s ended %s; another one takes its place", process.pid, _how(process.exitcode)
        )
        time.sleep(max(0.0, _SHORT_LIFE - lived))
        self._missing.append(number)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._is_renewed = True
        for process in list(self._running):
            _send(process, number)

    def _stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        self._stopping = True
        notify("STOPPING=1")
        for process in list(self._running):
            process.terminate()


def _send(process: BaseProcess, number: int) -> None:
    if process.pid is not None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, number)


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"with exit code {exit_code}"


def _run(
    work: Callable[..., int], arguments: tuple[object, ...], number: int, told: Connection
) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    code = _NOT_NOW
    try:
        code = work(*arguments, number, tell=lambda: told.send(number))
    except ConfigurationError as exc:
        logger.critical("can't start: %s", exc)
    except Exception:
        logger.exception("unexpected error in a worker")
    raise SystemExit(code)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - a spawned process has one
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
