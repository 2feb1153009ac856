"""The clock: it goes forward with the monotonic clock, whatever the wall clock does."""

from pathlib import Path

import pytest

from zaqar_lite.domain.clock import Clock, read_instant

START = 1_800_000_000.0


class Times:
    """The machine's two clocks, set by the test."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 50.0

    def clock(self, offset_file: Path | None = None) -> Clock:
        return Clock(
            offset_file=offset_file, wall=lambda: self.wall, monotonic=lambda: self.monotonic
        )


@pytest.fixture
def times() -> Times:
    return Times()


def test_it_starts_at_the_wall_clock_and_follows_the_monotonic_one(times: Times) -> None:
    clock = times.clock()
    assert (clock.now_ms(), clock.now_us()) == (START * 1_000, START * 1_000_000)
    times.monotonic += 1.25
    clock.advance(90_000)
    clock.advance(1)
    assert clock.offset_ms == 90_001
    assert clock.now_ms() == START * 1_000 + 91_251
    assert clock.now_us() == START * 1_000_000 + 91_251_000


@pytest.mark.parametrize("step", [-3_600, 3_600])
def test_a_wall_clock_that_steps_changes_nothing(times: Times, step: int) -> None:
    """Back: no lease is re-opened. Forward: none is cut, and nothing is handed out early."""
    clock = times.clock()
    before = clock.now_ms()
    times.wall += step
    assert clock.now_ms() == before


def test_it_does_not_start_before_the_last_instant_of_the_store(
    times: Times, caplog: pytest.LogCaptureFixture
) -> None:
    """An instant in the past does not move it back."""
    clock = times.clock()
    clock.not_before(int(START * 1_000) - 60_000)
    assert clock.now_ms() == START * 1_000
    clock.not_before(int(START * 1_000) + 60_000)
    assert clock.now_ms() == START * 1_000 + 60_000
    times.monotonic += 1
    assert clock.now_ms() == START * 1_000 + 61_000
    assert clock.offset_ms == 0
    assert not caplog.records
    clock.not_before(int(START * 1_000) + 3_661_000)
    assert "this machine's clock is 3600 s behind the store's" in caplog.text


def test_the_offset_is_read_from_its_file_at_every_call(times: Times, tmp_path: Path) -> None:
    path = tmp_path / "offset"
    clock = times.clock(path)
    assert clock.offset_ms == 0  # the file is not there yet
    for text, offset in (("5000\n", 5_000), ("", 0), ("12", 12)):
        path.write_text(text)
        assert clock.offset_ms == offset
        assert clock.now_ms() == START * 1_000 + offset


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2038-02-01T00:00:00.002Z", 2_148_595_200_002),
        ("0001-01-01T00:00:00+00:01", -62_135_596_800_000),
        ("9999-12-31T23:59:59.9999999-05:00", 253_402_300_799_999),
    ],
)
def test_an_instant_is_exact_to_the_millisecond_and_stays_in_the_calendar(
    text: str, instant: int
) -> None:
    assert read_instant(text) == instant
