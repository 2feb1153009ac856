"""Hide the values in bodies and show their structure."""

import json
from typing import Any, Literal

Samples = Literal["none", "keys", "full"]
_MOST = 2_000


def mask(body: str | None, samples: Samples) -> str | None:
    """Return what may be shown of a body: nothing, its keys with types for values, or all of it.

    At most 2,000 characters.
    """
    if body is None or samples == "none":
        return None
    if samples == "full":
        return body[:_MOST]
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "(not JSON)"
    return json.dumps(_types(value), ensure_ascii=False)[:_MOST]


def _types(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {key: _types(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_types(one) for one in value[:1]]
    names = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
    return names[type(value)]
