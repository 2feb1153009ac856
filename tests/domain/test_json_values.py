"""Equality of JSON values: `1` is not `true`, at any depth."""

from typing import Any

import pytest

from zaqar_lite.domain.json_values import is_same


@pytest.mark.parametrize(
    "value", [None, True, False, 0, 1, -1.5, "", "a", [], [1, [True]], {}, {"a": {"b": [None]}}]
)
def test_a_value_is_itself(value: Any) -> None:
    assert is_same(value, value)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (0, False),
        (0, None),
        (False, None),
        ("1", 1),
        ("", None),
        ([], {}),
        ([], None),
        ([1], [True]),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": [{"b": 0}]}, {"a": [{"b": False}]}),
    ],
)
def test_values_that_look_alike_differ(left: Any, right: Any) -> None:
    assert not is_same(left, right)
    assert not is_same(right, left)


def test_numbers_and_objects_are_equal_however_they_are_written() -> None:
    assert is_same(1, 1.0)
    assert is_same({"a": 1, "b": 2}, {"b": 2, "a": 1})
