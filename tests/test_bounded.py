"""A small run of `tests.bounded` over every store: nothing is lost, nothing is there twice.

How long others wait is shown and not asserted: that needs a quiet machine.
"""

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.bounded import Plan, run

pytestmark = pytest.mark.anyio
SMALL = Plan(queues=50, backlog=500, undisturbed=0.2, disturbed=1.0)
if "ZAQAR_TEST_ALL" in os.environ:
    SMALL = Plan(queues=100, backlog=1_000, undisturbed=0.5, disturbed=3.0)

SLOW = {"mongodb", "swift"}
"""Swift by nature, MongoDB in the stand-in that the tests start."""

STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda *_: "memory://",
    "embedded": lambda _, path: f"embedded://{path}",
    "slatedb": lambda _, path: f"opendata+slatedb://{path}",
    "redis": lambda request, _: str(request.getfixturevalue("redis_server").url),
    "mongodb": lambda request, _: str(request.getfixturevalue("mongodb_server").url),
    "swift": lambda request, _: (
        f"{request.getfixturevalue('swift_server').url}?prefix=bounded-{uuid4().hex[:8]}"
    ),
}


@pytest.mark.parametrize("store", STORES)
async def test_no_size_of_anything_loses_a_message(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    plan = SMALL.scaled(0.01) if store in SLOW else SMALL
    outcome = await run(STORES[store](request, tmp_path / "data"), plan)
    print(outcome.report(plan.bound))
    assert outcome.broken == []
    assert outcome.history
