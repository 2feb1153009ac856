"""The delays between the tries of a delivery."""

import pytest

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.retry_policy import parse_policy


@pytest.mark.parametrize(
    ("function", "growing"),
    [
        ("linear", [10, 15, 20, 25, 30, 35, 40, 45, 50, 55]),
        ("arithmetic", [10, 11, 13, 16, 21, 26, 33, 41, 50, 60]),
        ("geometric", [10, 12, 14, 18, 22, 27, 33, 40, 49, 60]),
    ],
)
def test_delays_grow_from_the_least_to_the_most(function: str, growing: list[int]) -> None:
    policy = {
        "minimum_delay": 10,
        "maximum_delay": 60,
        "retry_backoff_function": function,
        "retries_with_no_delay": 1,
        "minimum_delay_retries": 2,
        "maximum_delay_retries": 1,
    }
    parsed = parse_policy(policy)
    assert parsed is not None
    assert parsed.delays == [0, 10, 10, *growing, 60]


def test_what_a_policy_leaves_out_is_upstreams() -> None:
    parsed = parse_policy({"ignore_subscription_override": False})
    assert parsed is not None
    assert parsed.delays == [0, 0, 0, 5, 5, 5, 5, 10, 15, 20, 25, 30, 30, 30]


@pytest.mark.parametrize(
    ("function", "few", "many"),
    [
        ("linear", [10, 15], [0, 100, 200, 9_800, 9_900]),
        ("arithmetic", [10, 20], [0, 2, 6, 9_800, 10_000]),
        ("geometric", [10, 20], [1, 1, 1, 9_111, 10_000]),
        ("exponential", [10, 20], [1, 1, 1, 9_111, 10_000]),
    ],
)
def test_there_are_two_delays_at_least_and_a_hundred_at_most(
    function: str, few: list[int], many: list[int]
) -> None:
    none = {"retries_with_no_delay": 0, "minimum_delay_retries": 0, "maximum_delay_retries": 0}
    named = {**none, "retry_backoff_function": function}
    least = parse_policy({**named, "minimum_delay": 10, "maximum_delay": 20})
    most = parse_policy({**named, "minimum_delay": 0, "maximum_delay": 10_000})
    assert least is not None
    assert most is not None
    assert least.delays == few
    assert (len(most.delays), [*most.delays[:3], *most.delays[-2:]]) == (100, many)
    with pytest.raises(Invalid, match="at least 10 seconds above"):
        parse_policy({**named, "minimum_delay": 10, "maximum_delay": 19})
