"""How long operations took, to the bucket."""

import pytest

from zaqar_lite.service.metrics import instrumented_store as instrumented
from zaqar_lite.service.metrics.shared_counters import LATENCIES, Row

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (LATENCIES[0], 0),
        (LATENCIES[0] + 1e-6, 1),
        (LATENCIES[-1] + 1e-6, len(LATENCIES)),
    ],
)
async def test_an_operation_is_counted_where_its_time_belongs(
    monkeypatch: pytest.MonkeyPatch, seconds: float, bucket: int
) -> None:
    instants = iter((0.0, seconds))
    monkeypatch.setattr(instrumented, "_clock", lambda: next(instants))
    row = Row()
    row.cells = [0] * (len(LATENCIES) + 2)

    async def act() -> None:
        pass

    await instrumented._timed(act, instrumented._Timer(row, 0, 0), None)()
    buckets = [0] * (len(LATENCIES) + 1)
    buckets[bucket] = 1
    assert row.cells == [seconds, *buckets]
