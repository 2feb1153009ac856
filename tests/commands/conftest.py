"""Fixtures of the command line's tests."""

from typing import Protocol

import pytest

from tests.client.conftest import client, queue, server
from tests.commands.running import ZAQAR, Run, on_a_terminal
from tests.server import ServerProcess

__all__ = ["client", "queue", "server"]


@pytest.fixture
def run(
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """Run a command in this process, for the project of the tests."""
    monkeypatch.setenv("ZAQAR_LITE_PROJECT", "tests")
    return Run(server.url, monkeypatch, capsysbinary)


class Shown(Protocol):
    """The type of the `shown` fixture."""

    def __call__(self, *words: str, columns: int = 200, code: int = 0) -> str:
        """Run a command on a terminal; return what a person sees."""


@pytest.fixture
def shown(server: ServerProcess) -> Shown:
    """Run a command on a terminal, for the project of the tests."""

    def show(*words: str, columns: int = 200, code: int = 0) -> str:
        options = ("--url", server.url, "--project", "tests")
        return on_a_terminal([*ZAQAR, *words, *options], columns=columns, code=code)

    return show
