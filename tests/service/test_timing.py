"""When schedules fire: cron in time zones whose clocks change, intervals, durations."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

import pytest

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.service.schedules.timing import Cron, Every, Once, Timing, jitter_ms, read_duration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(text: str) -> int:
    return round((datetime.fromisoformat(text) - EPOCH) / timedelta(milliseconds=1))


def shown(instants: Iterator[int], count: int) -> list[str]:
    return [
        (EPOCH + timedelta(milliseconds=one)).strftime("%d %H:%M")
        for one in islice(instants, count)
    ]


@pytest.mark.parametrize(
    ("zone", "cron", "after", "expected"),
    [
        # Spring in Berlin: 02:30 does not exist, and 03:00 is the first instant behind the gap.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T02:00Z", ["29 01:00", "30 00:30"]),
        # Autumn: 02:30 comes twice, and fires once; each half hour of real time counts.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00Z", ["25 00:30", "26 01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:30Z", ["26 01:30", "27 01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:10Z", ["26 01:30", "27 01:30"]),
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-10-24T23:30Z",
            ["25 00:00", "25 00:30", "25 01:00"],
        ),
        ("Europe/Berlin", "0 */2 * * *", "2026-10-24T23:00Z", ["25 00:00", "25 01:00", "25 03:00"]),
        # Lord Howe moves its clocks by half an hour; two wall times in the gap are one instant.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00Z", ["03 15:30", "04 15:15"]),
        ("Australia/Lord_Howe", "5,15 2 * * *", "2026-10-03T12:00Z", ["03 15:30", "04 15:05"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-03T12:00Z", ["03 14:45", "04 15:15"]),
        # What the clock skips in spring, or shows twice in autumn: at Santiago that is midnight.
        ("America/New_York", "30 2 * * *", "2026-03-07T12:00Z", ["08 07:00", "09 06:30"]),
        ("America/New_York", "30 1 * * *", "2026-10-31T12:00Z", ["01 05:30", "02 06:30"]),
        ("America/Santiago", "0 0 * * *", "2026-09-05T12:00Z", ["06 04:00", "07 03:00"]),
        ("America/Santiago", "30 23 * * *", "2026-04-04T12:00Z", ["05 02:30", "06 03:30"]),
        # Morocco left its summer time in 2018 and keeps +01 but for Ramadan; Samoa left out a day.
        ("Africa/Casablanca", "0 9 * * *", "2018-10-27T12:00Z", ["28 08:00", "29 08:00"]),
        ("Pacific/Apia", "0 12 * * *", "2011-12-28T00:00Z", ["28 22:00", "29 22:00", "30 10:00"]),
        ("UTC", "0 0 29 2 *", "2026-01-01T00:00Z", ["29 00:00"]),
    ],
)
def test_cron(zone: str, cron: str, after: str, expected: list[str]) -> None:
    assert shown(Cron(cron, zone).after(at(after)), len(expected)) == expected


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
    ],
)
def test_a_named_expression_is_that_of_its_fields(name: str, fields: str) -> None:
    after = at("2026-03-28T02:00Z")
    found = islice(Cron(name, "America/New_York").after(after), 5)
    assert list(found) == list(islice(Cron(fields, "America/New_York").after(after), 5))


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("60 * * * *", "minute of 'cron' is '60'; it may be 0 to 59"),
        ("0 24 * * *", "hour of 'cron' is '24'; it may be 0 to 23"),
        ("0 0 0 * *", "day of the month of 'cron' is '0'; it may be 1 to 31"),
        ("0 0 1 foo *", "month of 'cron' is 'foo'; it may be 1 to 12, or JAN to DEC"),
        ("0 0 * * 8", "day of the week of 'cron' is '8'; it may be 0 to 7"),
        ("*/0 * * * *", "minute of 'cron' is"),
        ("5-1 * * * *", "minute of 'cron' is '5-1'"),
        ("", "five fields"),
        ("* * * * * *", "five fields"),
        ("@reboot", "can't be @reboot"),
        ("@noon", "one of @hourly, @daily"),
        ("0 0 30 2 *", "'cron' can't be read|never fires"),
    ],
)
def test_a_bad_expression_is_told_by_its_field(cron: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        Cron(cron, "UTC")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize("begin", ["2026-03-28T00:00Z", "2026-10-02T00:00Z", "2026-10-23T00:00Z"])
def test_every_minute_of_days_with_a_change_fires_once(zone: str, begin: str) -> None:
    first = at(begin)
    found = list(islice(Cron("* * * * *", zone).after(first - 1), 4 * 1_440))
    assert found == [first + 60_000 * number for number in range(4 * 1_440)]


def test_going_on_from_any_instant_is_the_same_as_going_on() -> None:
    """What a process computes anew after a crash is what the one before would have done."""
    cron = Cron("30 0-4 * * *", "Europe/Berlin")
    whole = list(islice(cron.after(at("2026-10-24T20:00Z")), 12))
    anew = [whole[0]]
    while len(anew) < len(whole):
        anew.append(next(cron.after(anew[-1])))
    assert anew == whole


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "CET ", "/etc/localtime"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(Invalid):
        Cron("* * * * *", zone)


def test_an_interval_counts_from_its_anchor() -> None:
    every: Timing = Every(60_000, 1_000)
    assert list(islice(every.after(0), 2)) == [1_000, 61_000]
    assert list(islice(every.after(61_000), 2)) == [121_000, 181_000]
    assert list(Once(5).after(4)) == [5]
    assert list(Once(5).after(5)) == []


def test_durations() -> None:
    assert [read_duration(text, "x") for text in (7, "90s", "1h30m", "1.5h", "2d")] == [
        7,
        90,
        5400,
        5400,
        172_800,
    ]
    for wrong in ("", "11y", "h", "1h 2m", -1, "-1", "nan", "99999999w", "1s" * 33):
        with pytest.raises(Invalid):
            read_duration(wrong, "x")


def test_jitter_is_the_same_for_everybody_and_below_its_bound() -> None:
    found = {jitter_ms("a", at, 10) for at in range(100)}
    assert all(0 <= one < 10_000 for one in found)
    assert len(found) > 50
    assert jitter_ms("a", 7, 10) == jitter_ms("a", 7, 10)
    assert jitter_ms("a", 7, 0) == 0


@pytest.mark.parametrize(
    ("after", "before"), [(0, 1), (0, 1_000), (999, 30_001), (5, 4), (70, 900)]
)
@pytest.mark.parametrize("most", [0, 1, 10, 1_000])
def test_instants_that_are_passed_over_are_counted(after: int, before: int, most: int) -> None:
    timing = Every(7, anchor=100)
    all_of_them = list(takewhile(lambda instant: instant < before, timing.after(after)))
    skipped, then = timing.skip(after, before, most)
    left = list(takewhile(lambda instant: instant < before, timing.after(then)))
    assert left == all_of_them[skipped:]
    assert len(left) == min(len(all_of_them), most)
