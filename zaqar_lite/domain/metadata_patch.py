"""The JSON-patch subset that changes queue metadata (zaqar-behaviour 2.4)."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from zaqar_lite.domain.errors import Conflict, Invalid

_BAD_ESCAPE = re.compile(r"~(?![01])")
_OPERATIONS = ("add", "remove", "replace")


class Operation(NamedTuple):
    """One step of a patch on a top-level metadata key."""

    op: str
    key: str
    value: Any = None


def parse(document: Any) -> Sequence[Operation]:  # noqa: ANN401 - any JSON
    """Read a patch document: an array of objects `{op, path, value?}`.

    Raises:
        Invalid: names the operation that is wrong and why.
    """
    if not isinstance(document, list):
        raise Invalid("A patch must be an array of operations.")
    return [_operation(index, item) for index, item in enumerate(document)]


def apply(
    operations: Sequence[Operation], metadata: Mapping[str, Any], shown: Collection[str]
) -> dict[str, Any]:
    """Apply operations in order to a copy of `metadata`; `shown` are the overlay's keys.

    Raises:
        Conflict: a key to replace or remove is neither stored nor one that every queue shows.
    """
    patched = dict(metadata)
    for op, key, value in operations:
        if op != "add" and key not in patched and key not in shown:
            raise Conflict(f"Can't {op} the metadata key {key!r}: the queue does not have it.")
        if op == "remove":
            patched.pop(key, None)
        else:
            patched[key] = value
    return patched


def _operation(index: int, item: Any) -> Operation:  # noqa: ANN401 - any JSON
    where = f"Operation {index}"
    if not isinstance(item, dict):
        raise Invalid(f"{where} must be an object.")
    op = item.get("op")
    if op not in _OPERATIONS:
        raise Invalid(f"{where}: 'op' must be one of {', '.join(_OPERATIONS)}.")
    if op != "remove" and "value" not in item:
        raise Invalid(f"{where}: {op!r} needs a 'value'.")
    return Operation(op, _key(where, op, item.get("path")), item.get("value"))


def _key(where: str, op: str, path: Any) -> str:  # noqa: ANN401 - any JSON
    if not isinstance(path, str) or not path.startswith("/"):
        raise Invalid(f"{where}: 'path' must be a string that begins with '/'.")
    if _BAD_ESCAPE.search(path):
        raise Invalid(f"{where}: 'path' may escape only '~0' and '~1'.")
    segments = [segment.strip() for segment in path[1:].split("/")]
    if len(segments) != 2 or not all(segments):
        raise Invalid(f"{where}: 'path' must be '/metadata/' and one key.")
    first, key = (segment.replace("~1", "/").replace("~0", "~") for segment in segments)
    if op != "remove" and first.lower() != "metadata":
        raise Invalid(f"{where}: 'path' must begin with '/metadata/'.")
    return key
