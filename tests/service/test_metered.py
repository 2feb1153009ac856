"""How long operations took, to the bucket."""

import time

import pytest

from zaqar_lite.service.metrics.families import LATENCIES, Row
from zaqar_lite.service.metrics.metered import _timed

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("micros", "bucket"),
    [
        (0, 0),
        (round(LATENCIES[0] * 1e6), 0),
        (round(LATENCIES[0] * 1e6) + 1, 1),
        (round(LATENCIES[-1] * 1e6) + 1, len(LATENCIES)),
    ],
)
async def test_an_operation_is_counted_where_its_time_belongs(
    monkeypatch: pytest.MonkeyPatch, micros: int, bucket: int
) -> None:
    instants = iter((0, micros * 1000))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(instants))
    row = Row()
    row.cells = [0] * (len(LATENCIES) + 2)

    async def act() -> None:
        pass

    await _timed(act, row, 0, 0, None)()
    buckets = [0] * (len(LATENCIES) + 1)
    buckets[bucket] = 1
    assert row.cells == [micros, *buckets]
