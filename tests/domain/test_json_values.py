"""Equality of JSON values: `1` is not `true`, at any depth."""

from typing import Any

import pytest

from zaqar_lite.domain.json_values import is_same


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
