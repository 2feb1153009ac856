"""Real servers for the unmodified clients, one a store: the embedded one and Redis.

ZAQAR_TEST_COMPAT_STORE names another store instead.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import ServerProcess

NAMED = os.environ.get("ZAQAR_TEST_COMPAT_STORE")


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that says how many milliseconds the server's clock is moved; it never goes back."""
    offset = tmp_path_factory.mktemp("clock") / "offset"
    offset.write_text("0", encoding="ascii")
    return offset


@pytest.fixture(scope="module", params=[NAMED] if NAMED else ["embedded", "redis"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, clock: Path
) -> Iterator[ServerProcess]:
    """A server process that the tests of a file share.

    It ends with them: its sweep drains every exposing queue of the Redis that other tests use, too.
    """
    store: str = request.param
    if store == "embedded":
        store = f"embedded://{tmp_path_factory.mktemp('store')}"
    elif store == "redis":
        store = request.getfixturevalue("redis_server").url
    env = {
        "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock),
        "ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "secret" * 6,
        # Tempest subscribes mail addresses; it posts nothing to their queues.
        "ZAQAR_LITE_SMTP_HOST": "127.0.0.1",
        "ZAQAR_LITE_SMTP_SENDER": "queue@example.org",
    }
    with ServerProcess(store, "--admin-mode", env=env) as running:
        yield running


@pytest.fixture
def project() -> str:
    """A project of the test's own."""
    return uuid.uuid4().hex
