"""The sorted index that takes thousands of values in a row at once."""

import random
from typing import Any, cast

from zaqar_lite.storage.memory.runs import LONG_RUN, Run


def test_it_stays_sorted_whatever_comes_and_goes() -> None:
    """Against a plain sorted list, with runs behind, between and before what is there."""
    choose = random.Random(7)
    index: Run[int] = Run()
    there: set[int] = set()
    for start in (10_000, 20_000, 5_000, 30_000, 30_001, 12_345):
        values = [start + 3 * n for n in range(LONG_RUN * 5) if start + 3 * n not in there]
        index.add_run(values)
        there.update(values)
        index.add_run([start + 1] if start + 1 not in there else [])
        there.add(start + 1)
        for value in choose.sample(sorted(there), len(there) // 3):
            index.remove(value)
            there.remove(value)
        expected = sorted(there)
        assert list(index) == expected
        assert len(index) == len(expected)
        assert [index[n] for n in (0, 17, len(expected) // 2, -1)] == [
            expected[n] for n in (0, 17, len(expected) // 2, -1)
        ]
        assert index.bisect_right(20_100) == sum(value <= 20_100 for value in expected)


def test_runs_of_any_length_follow_one_another() -> None:
    choose = random.Random(11)
    index: Run[int] = Run()
    expected: list[int] = []
    for _ in range(400):
        first = (expected[-1] if expected else 0) + choose.randrange(1, 5)
        values = list(range(first, first + choose.choice((0, 1, 2, 8, 20, LONG_RUN - 1, LONG_RUN))))
        index.add_run(values)
        expected += values
        for _ in range(choose.randrange(3) if expected else 0):
            value = choose.choice(expected)
            assert index[index.index(value)] == value
            index.remove(value)
            expected.remove(value)
    assert list(index) == expected
    cast(Any, index)._check()  # what the base class holds true of its parts


def test_a_run_behind_all_is_taken_as_it_is() -> None:
    index: Run[int] = Run([1, 2, 3])
    compared = _Compared.count
    index.add_run([_Compared(4 + n) for n in range(5_000)])
    assert _Compared.count - compared < 100
    assert len(index) == 5_003


class _Compared(int):
    """A number that counts how often it is compared."""

    count = 0

    def __lt__(self, other: int) -> bool:
        _Compared.count += 1
        return int(self) < int(other)
