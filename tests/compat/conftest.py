"""Real servers for the unmodified clients, one a store: the embedded one and Redis.

With --all it is every store; ZAQAR_TEST_COMPAT_STORE names another store instead.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.server import ServerProcess

NAMED = os.environ.get("ZAQAR_TEST_COMPAT_STORE")
_STORES = ["embedded", "redis"]
if "ZAQAR_TEST_ALL" in os.environ:
    _STORES += ["memory", "mongodb", "swift"]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that says how many milliseconds the server's clock is moved; it never goes back."""
    offset = tmp_path_factory.mktemp("clock") / "offset"
    offset.write_text("0", encoding="ascii")
    return offset


@pytest.fixture(scope="module", params=[NAMED] if NAMED else _STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of a store."""
    name: str = request.param
    if name == "embedded":
        return f"embedded://{tmp_path_factory.mktemp('store')}/store"
    if name == "memory":
        return "memory://"
    if name in ("redis", "mongodb", "swift"):
        url: str = request.getfixturevalue(f"{name}_server").url
        return url
    return name


@pytest.fixture(scope="module")
def options() -> Sequence[str]:
    """Further words of the server's command line."""
    return ()


@pytest.fixture(scope="module")
def server(store: str, clock: Path, options: Sequence[str]) -> Iterator[ServerProcess]:
    """A server process that the tests of a file share.

    It ends with them: its sweep drains every exposing queue of the Redis that other tests use, too.
    """
    env = {
        "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock),
        "ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "secret" * 6,
        # Tempest subscribes mail addresses; it posts nothing to their queues.
        "ZAQAR_LITE_SMTP_URL": "smtp://127.0.0.1",
        "ZAQAR_LITE_SMTP_SENDER": "queue@example.org",
    }
    process = ServerProcess(store, "--admin-mode", *options, env=env)
    with process.start(ready=401 if options else 204) as running:
        yield running


@pytest.fixture
def project() -> str:
    """A project of the test's own."""
    return uuid.uuid4().hex
