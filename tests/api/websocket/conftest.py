"""Servers that the tests of a module share, and sockets to them."""

from collections.abc import Iterator

import pytest

from tests.api.websocket.talk import Talk
from tests.server import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with its defaults."""
    with ServerProcess("memory://", "--admin-mode") as started:
        yield started


@pytest.fixture(params=[False, True], ids=["text", "binary"])
def talk(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """A socket in a project of its own, once for each form of frames."""
    with Talk(server, binary=request.param) as opened:
        yield opened
