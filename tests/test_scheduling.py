"""The order in which a parallel run takes its files."""

from pathlib import Path

import pytest

from tests.scheduling import LONGEST, TOGETHER, file_of, folder_of, longest, longest_first, unit_of

ROOT = Path(__file__).parents[1]


def test_the_longest_come_first_then_those_with_the_most_tests() -> None:
    few, many = "tests/test_few.py", "tests/test_many.py"
    tempest, spark = "tests/compat/test_tempest.py", "tests/spark/test_write.py"
    files = [few, many, many, tempest, spark]
    assert longest_first(files) == [spark, tempest, many, few]


def test_a_file_is_one_unit_and_so_is_a_folder_that_shares_a_server() -> None:
    assert unit_of("tests/api/test_keys.py::test[a::b]") == "tests/api/test_keys.py"
    assert unit_of("tests/spark/test_a.py::test") == unit_of("tests/spark/test_b.py::test")


def test_the_seconds_of_a_place_are_summed() -> None:
    def report(test: str, seconds: float) -> pytest.TestReport:
        where = (file_of(test), 1, "test")
        return pytest.TestReport(test, where, {}, "passed", None, "call", duration=seconds)

    a, b, c = "tests/api/test_a.py", "tests/drivers/redis/lua/test_b.py", "tests/test_c.py"
    reports = [
        report(f"{a}::test_1", 1),
        report(f"{b}::test", 3),
        report(f"{a}::test_2", 2.5),
        report(f"{a}::test_2", 0.5),
        report(f"{c}::test", 1),
    ]
    assert longest(reports, file_of, 2) == [(a, 4, 2), (b, 3, 1)]
    assert longest(reports, folder_of, 9) == [
        ("tests/api", 4, 2),
        ("tests/drivers/redis", 3, 1),
        ("tests", 1, 1),
    ]


def test_what_is_named_is_there() -> None:
    assert all((ROOT / name).exists() for name in (*LONGEST, *TOGETHER))
