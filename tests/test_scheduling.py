"""The order in which a parallel run takes its files."""

from pathlib import Path

import pytest

from tests.scheduling import LONGEST, TOGETHER, longest, longest_first, unit_of

ROOT = Path(__file__).parents[1]


def test_the_longest_come_first_then_those_with_the_most_tests() -> None:
    few, many = "tests/test_few.py", "tests/test_many.py"
    tempest, spark = "tests/compat/test_tempest.py", "tests/spark/test_write.py"
    files = [few, many, many, tempest, spark]
    assert longest_first(files) == [spark, tempest, many, few]


def test_a_file_is_one_unit_and_so_is_a_folder_that_shares_a_server() -> None:
    assert unit_of("tests/api/test_keys.py::test[a::b]") == "tests/api/test_keys.py"
    assert unit_of("tests/spark/test_a.py::test") == unit_of("tests/spark/test_b.py::test")


def test_the_seconds_of_a_files_tests_are_summed() -> None:
    def report(file: str, seconds: float) -> pytest.TestReport:
        where = (file, 1, "test")
        return pytest.TestReport(
            f"{file}::test", where, {}, "passed", None, "call", duration=seconds
        )

    reports = [report("a.py", 1), report("b.py", 3), report("a.py", 2.5), report("c.py", 1)]
    assert longest(reports, 2) == [("a.py", 3.5), ("b.py", 3)]


def test_what_is_named_is_there() -> None:
    assert all((ROOT / name).exists() for name in (*LONGEST, *TOGETHER))
