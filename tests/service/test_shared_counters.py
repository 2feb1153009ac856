"""The board on which the processes of a server show each other what they counted."""

import logging
from pathlib import Path

import pytest

from zaqar_lite.service.metrics.metrics import Exposition
from zaqar_lite.service.metrics.shared_counters import (
    LATENCIES,
    Family,
    MetricType,
    Place,
    Row,
    SharedCounters,
    make_file,
)


@pytest.fixture
def path() -> Path:
    """The file of a board of two rows of three cells."""
    return make_file(2, 3)


def at(path: Path, own: int) -> SharedCounters:
    board = SharedCounters(Place(path, 2, own))
    board.lay_out(3)
    return board


def test_rows_are_added_up_and_taken_over(path: Path) -> None:
    try:
        one, other = at(path, 0), at(path, 1)
        one.row.cells[:] = [1, 2, 3]
        other.row.cells[:] = [10, 20, 30]
        other.publish()
        assert one.sums(largest=(2,)) == [11, 22, 30]
        assert at(path, 1).row.cells == [10, 20, 30]
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (LATENCIES[0], 0),
        (LATENCIES[0] + 1e-6, 1),
        (LATENCIES[-1] + 1e-6, len(LATENCIES)),
    ],
)
def test_a_histogram_counts_where_a_value_belongs(seconds: float, bucket: int) -> None:
    row = Row()
    row.cells = [0] * (len(LATENCIES) + 2)
    row.observe(0, LATENCIES, seconds)
    buckets = [0] * (len(LATENCIES) + 1)
    buckets[bucket] = 1
    assert row.cells == [seconds, *buckets]


def test_a_process_counts_alone_where_the_file_is_gone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What tidies up a temporary directory must not keep workers from being replaced."""
    path.unlink()
    with caplog.at_level(logging.WARNING):
        board = at(path, 0)
    assert str(path) in caplog.text
    board.row.cells[0] = 5
    board.write({"at": 1})
    assert (board.is_shared, board.sums(), board.read()) == (False, [5, 0, 0], {"at": 1})


@pytest.mark.parametrize(("value", "shown"), [(2_500_000.0, "2500000"), (2.5, "2.5"), (0.0, "0")])
def test_a_whole_number_is_written_without_a_fraction(value: float, shown: str) -> None:
    page = Exposition(openmetrics=False)
    page.add_cells(Family("zaqar_lite_sweep_seconds_total", MetricType.COUNTER, "help"), [value])
    assert page.text().splitlines()[-1] == f"zaqar_lite_sweep_seconds_total {shown}"
