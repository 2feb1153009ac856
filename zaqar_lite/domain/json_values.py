"""Equality of JSON values, as metadata filters mean it."""

from typing import Any


def is_same(left: Any, right: Any) -> bool:  # noqa: ANN401 - any JSON
    """Tell whether two JSON values are equal: `1` is not `true`, but `1` is `1.0`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right)
