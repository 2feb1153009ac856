"""JSON values: read as a type, and equal as metadata filters mean it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from zaqar_lite.domain.errors import Invalid


def read_json(value: Any, kind: Any, what: str) -> Any:  # noqa: ANN401 - any JSON
    """Read a value as a type of msgspec's; `what` names it in the error.

    Raises:
        Invalid: says what was expected, and where.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise Invalid(f"{what}: {exc}.") from None


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
