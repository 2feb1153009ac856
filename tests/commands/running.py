"""Run commands: in this process, or on a terminal of their own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., tuple[int, list[Any]]]
"""Runs a command in this process; returns its exit code and its JSON lines."""
ZAQAR = (sys.executable, "-m", "zaqar_lite.cli")


def on_a_terminal(words: list[str], *, columns: int = 200, code: int = 0) -> str:
    """Run a command on a pseudo-terminal and return what it shows."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "50"}
    process = subprocess.Popen(words, stdout=slave, stderr=slave, stdin=slave, env=env)
    os.close(slave)
    shown = b""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.wait(10) == code
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
