"""Run commands: in this process, as a process, or on a terminal of their own."""

import io
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from zaqar_lite.cli import main

ZAQAR = (sys.executable, "-m", "zaqar_lite.cli")


class Run:
    """Runs a command in this process; returns its exit code and its JSON lines."""

    def __init__(
        self,
        url: str,
        monkeypatch: pytest.MonkeyPatch,
        capsysbinary: pytest.CaptureFixture[bytes],
    ) -> None:
        self.url = url
        self.said = ""
        """What the last command wrote to standard error."""
        self._monkeypatch = monkeypatch
        self._printed = capsysbinary

    def __call__(
        self, *words: str, stdin: bytes = b"", url: str | None = None
    ) -> tuple[int, list[Any]]:
        self._monkeypatch.setenv("ZAQAR_LITE_URL", self.url if url is None else url)
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(words)
        except SystemExit as left:  # argparse's way to refuse
            code = int(left.code or 0)
        printed = self._printed.readouterr()
        self.said = printed.err.decode()
        assert bool(self.said) == (code not in {0, 1}) or "zaqar-lite: " in self.said
        return code, [json.loads(line) for line in printed.out.splitlines()]


def on_a_terminal(
    words: list[str], *, columns: int = 200, code: int = 0, colours: bool = False
) -> str:
    """Run a command on a pseudo-terminal and return what it shows."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50"}
    running = subprocess.Popen(words, stdout=slave, stderr=slave, stdin=slave, env=env)
    os.close(slave)
    shown = b""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            part = os.read(master, 65536)
        except OSError:  # how Linux says that nobody has the other end any more
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert running.wait(10) == code
    text = shown.decode().replace("\r\n", "\n")
    return text if colours else re.sub(r"\x1b\[[0-9;]*m", "", text)
