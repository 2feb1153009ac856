"""kill -9 at random moments under 8 clients, against the real server, and what a history proves.

ZAQAR_TEST_KILL_ROUNDS sets the rounds (2 unless told).
"""

import os
from pathlib import Path

import pytest

from tests.history import kill_again_and_again

pytestmark = pytest.mark.anyio
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "2"))


def damaged(directory: Path) -> list[Path]:
    """What a start has set aside as damaged."""
    return list(directory.rglob("*damaged*"))


async def test_kill_minus_nine_breaks_no_promise(tmp_path: Path) -> None:
    await kill_again_and_again(f"opendata+slatedb://{tmp_path / 'data'}", ROUNDS)
    assert not damaged(tmp_path)  # no kill looks like damage
