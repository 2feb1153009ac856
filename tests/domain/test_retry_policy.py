"""The delays between the tries of a delivery."""

import pytest

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
