"""Fixtures of the client's tests: one real server for all, and random names."""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.testing import ZaqarClock

BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
"""For tests that hold both clients to account."""


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with a memory store, in admin mode, that signs URLs."""
    env = {"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": secrets.token_hex(16)}
    with ServerProcess("memory://", "--admin-mode", env=env) as process:
        yield process


@pytest.fixture
def queue() -> str:
    """A queue that no other test knows."""
    return f"queue-{secrets.token_hex(8)}"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A sync client of that server."""
    with Client(server.url, project="tests") as made:
        yield made


@pytest.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[AsyncClient]:
    """An async client of that server."""
    async with AsyncClient(server.url, project="tests") as made:
        yield made


class MovableServer:
    """A server whose time moves by hand; it never goes back."""

    def __init__(self, process: ServerProcess, offset: Path) -> None:
        self.process = process
        self.url = process.url
        self.advance = ZaqarClock(offset).advance


@pytest.fixture(scope="session")
def movable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovableServer]:
    """A server with a memory store whose clock the test moves."""
    offset = tmp_path_factory.mktemp("clock") / "offset"
    env = {"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset)}
    with ServerProcess("memory://", env=env) as process:
        yield MovableServer(process, offset)


@pytest.fixture
def moving(movable: MovableServer) -> Iterator[Client]:
    """A sync client of that server."""
    with Client(movable.url, project="tests") as made:
        yield made
