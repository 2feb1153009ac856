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

WANTED = os.environ.get("ZAQAR_TEST_KILL_ROUNDS")
ROUNDS = int(WANTED or ("500" if "ZAQAR_TEST_ALL" in os.environ else "4"))
SLATEDB_ROUNDS = int(WANTED or 2)
EACH = 50
"""Rounds of one store: the history is compared in time that grows with the square of its length."""
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180 + 6 * min(EACH, ROUNDS))]


@pytest.mark.parametrize("first", range(0, ROUNDS, EACH))
async def test_kills_break_no_promise_of_the_sql_store(first: int, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await kill_again_and_again(f"embedded://{directory}", min(EACH, ROUNDS - first))
    left = connect(str(directory / FILE_NAME))
    assert broken(left, Clock().now_ms()) == []
    left.close()


@pytest.mark.parametrize("first", range(0, SLATEDB_ROUNDS, EACH))
async def test_kills_break_no_promise_of_slatedb(first: int, tmp_path: Path) -> None:
    rounds = min(EACH, SLATEDB_ROUNDS - first)
    await kill_again_and_again(f"opendata+slatedb://{tmp_path / 'data'}", rounds)
    assert damaged(tmp_path) == []  # no kill looks like damage


def damaged(directory: Path) -> list[Path]:
    """What a start has set aside as damaged."""
    return list(directory.rglob("*damaged*"))
