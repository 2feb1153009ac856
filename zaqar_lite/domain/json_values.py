"""Equality of JSON values, as metadata filters mean it."""

from collections.abc import Mapping
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


def holds_all(document: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether a document has all the keys and values of another one."""
    return all(key in document and is_same(document[key], wanted[key]) for key in wanted)
