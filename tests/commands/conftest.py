"""Fixtures of the command line's tests."""

import io
import json
import sys
from typing import Any

import pytest

from tests.client.conftest import client, queue, server
from tests.commands.running import Run
from tests.server import ServerProcess
from zaqar_lite.cli import main

__all__ = ["client", "queue", "server"]


@pytest.fixture
def run(
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """Run a command in this process; return its exit code and its JSON lines."""
    monkeypatch.setenv("ZAQAR_LITE_PROJECT", "tests")

    def runner(*words: str, stdin: bytes = b"", url: str = server.url) -> tuple[int, list[Any]]:
        monkeypatch.setenv("ZAQAR_LITE_URL", url)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(words)
        except SystemExit as left:  # argparse's way to refuse
            code = int(left.code or 0)
        printed = capsysbinary.readouterr()
        assert bool(printed.err) == (code not in {0, 1}) or b"zaqar-lite: " in printed.err
        return code, [json.loads(line) for line in printed.out.splitlines()]

    return runner
