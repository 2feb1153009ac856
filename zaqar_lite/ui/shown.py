"""Values of the API as a person reads them."""

import datetime as dt
import json
from typing import Any

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_LONGEST = 100_000
"""Characters of a body that a page shows."""


def duration(seconds: float | None) -> str:
    """Write seconds by their two largest units; nothing for None."""
    if seconds is None:
        return ""
    left = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or (parts and left):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def body(value: Any) -> str:  # noqa: ANN401 - JSON is anything
    """Write a body over several lines; a long one is cut."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… (cut)"


def line(value: Any) -> str:  # noqa: ANN401
    """Write a body on one line of a table."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:119]}…"


def state(message: dict[str, Any]) -> str:
    """Say what state a listed message is in; its details are needed."""
    if "?claim_id=" in message["href"]:
        return "claimed"
    if message.get("parked_until"):
        return "waits to be tried again"
    return "delayed" if waits(message) > 0 else "ready"


def waits(message: dict[str, Any]) -> float:
    """Return the seconds until the message's delay ends; 0 where it has none or it is over."""
    due, created = message.get("delay_expires"), message.get("created")
    if not due or not created:
        return 0
    after = dt.datetime.fromisoformat(due) - dt.datetime.fromisoformat(created)
    return max(0.0, after.total_seconds() - float(message["age"]))
