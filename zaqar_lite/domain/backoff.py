"""The queue attribute `_retry_backoff`: how long a message waits after each failure.

One of three forms, in seconds; `jitter` (0 to 1, default 0) may stand in each:

    {"type": "exponential", "min": 1, "max": 3600}    1, 2, 4, ... 3600
    {"type": "linear", "min": 10, "max": 600}         10, 20, 30, ... 600
    {"type": "list", "delays": [5, 300, 1800]}        these, and the last one from then on
"""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.domain.attempts import MAX_BACKOFF_STEPS, Backoff
from zaqar_lite.domain.errors import Invalid

ATTRIBUTE = "_retry_backoff"
_FIELDS = {
    "exponential": {"type", "min", "max", "jitter"},
    "linear": {"type", "min", "max", "jitter"},
    "list": {"type", "delays", "jitter"},
}


def parse_backoff(value: Any, longest: int) -> Backoff | None:  # noqa: ANN401 - any JSON
    """Read the attribute; None where it is absent. No delay is above `longest` seconds.

    Raises:
        Invalid: says what is wrong and what is allowed.
    """
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise Invalid(f'{ATTRIBUTE} must be an object with "type" one of {", ".join(_FIELDS)}.')
    unknown = sorted(set(value) - _FIELDS[kind])
    if unknown:
        raise Invalid(
            f"{ATTRIBUTE} has an unknown field {unknown[0]!r}: {kind} takes "
            f"{', '.join(sorted(_FIELDS[kind]))}."
        )
    delays = _listed(value, longest) if kind == "list" else _computed(kind, value, longest)
    return Backoff(tuple(delay * 1000 for delay in delays), _jitter(value))


def _listed(value: Mapping[str, Any], longest: int) -> list[int]:
    delays = value.get("delays")
    if not isinstance(delays, list) or not 1 <= len(delays) <= MAX_BACKOFF_STEPS:
        raise Invalid(f"{ATTRIBUTE}: delays must be a list of 1 to {MAX_BACKOFF_STEPS} seconds.")
    return [_seconds("each of the delays", delay, 0, longest) for delay in delays]


def _computed(kind: str, value: Mapping[str, Any], longest: int) -> list[int]:
    first = _seconds("min", value.get("min"), 1, longest)
    last = _seconds("max", value.get("max"), first, longest)
    delays = [first]
    while delays[-1] < last:
        following = delays[-1] * 2 if kind == "exponential" else delays[-1] + first
        delays.append(min(following, last))
        if len(delays) > MAX_BACKOFF_STEPS:
            raise Invalid(
                f"{ATTRIBUTE}: a linear max may be at most {MAX_BACKOFF_STEPS} times its min."
            )
    return delays


def _seconds(what: str, value: Any, least: int, most: int) -> int:  # noqa: ANN401 - any JSON
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        found = "missing" if value is None else repr(value)
        raise Invalid(
            f"{ATTRIBUTE}: {what} must be whole seconds from {least} to {most}; it is {found}."
        )
    return value


def _jitter(value: Mapping[str, Any]) -> float:
    jitter = value.get("jitter", 0)
    if not isinstance(jitter, int | float) or isinstance(jitter, bool) or not 0 <= jitter <= 1:
        raise Invalid(f"{ATTRIBUTE}: jitter must be a number from 0 to 1; it is {jitter!r}.")
    return float(jitter)
