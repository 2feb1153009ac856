"""kill -9 at random moments under 8 clients, against the real server, and what a history proves.

ZAQAR_TEST_KILL_ROUNDS sets the rounds.
"""

import os
from pathlib import Path

import pytest

from tests.drivers.sql.tables import broken
from tests.history import kill_again_and_again
from zaqar_lite.domain.clock import Clock
from zaqar_lite.storage.sql.place import FILE_NAME, connect

pytestmark = pytest.mark.anyio
ROUNDS = int(
    os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "500" if "ZAQAR_TEST_ALL" in os.environ else "4")
)
EACH = 50
"""Rounds of one store: the history is compared in time that grows with the square of its length."""


@pytest.mark.parametrize("first", range(0, ROUNDS, EACH))
async def test_kill_minus_nine_breaks_no_promise(first: int, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await kill_again_and_again(f"embedded://{directory}", min(EACH, ROUNDS - first))
    left = connect(str(directory / FILE_NAME))
    assert broken(left, Clock().now_ms()) == []
    left.close()
