"""When a delivery is tried again: Zaqar's `_retry_policy`, or ours where there is none.

A policy has four phases: at once, after the minimum, ever longer from the minimum to the maximum,
and after the maximum. Without a policy a delivery is tried again for as long as its message lives.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zaqar_lite.domain.errors import Invalid

ATTRIBUTE = "_retry_policy"
DEFAULT_DELAYS = (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
"""Seconds; the last one holds from then on."""
JITTER = 0.2
"""The part of a default delay that chance adds or takes."""
_DEFAULTS: Mapping[str, Any] = {
    "retries_with_no_delay": 3,
    "minimum_delay_retries": 3,
    "minimum_delay": 5,
    "maximum_delay": 30,
    "maximum_delay_retries": 3,
    "retry_backoff_function": "linear",
    "ignore_subscription_override": False,
}
_FUNCTIONS = ("linear", "arithmetic", "geometric", "exponential")
_LEAST_SPAN = 10
_STEP = 5
_MOST_RETRIES = 100
_LONGEST_DELAY = 86_400


def check_policy(policy: Any) -> None:  # noqa: ANN401 - any JSON
    """Check a `_retry_policy`; an empty one or None counts as none.

    Raises:
        Invalid: names the key that is wrong and what it may hold.
    """
    if policy in (None, {}):
        return
    if not isinstance(policy, dict):
        raise Invalid("_retry_policy must be an object.")
    for name, value in policy.items():
        if name not in _DEFAULTS:
            raise Invalid(f"_retry_policy has no key {name!r}: {', '.join(_DEFAULTS)} are known.")
        if name == "ignore_subscription_override":
            if not isinstance(value, bool):
                raise Invalid(f"_retry_policy: {name} must be true or false.")
        elif name == "retry_backoff_function":
            if value not in _FUNCTIONS:
                raise Invalid(f"_retry_policy: {name} must be one of {', '.join(_FUNCTIONS)}.")
        else:
            most = _MOST_RETRIES if "retries" in name else _LONGEST_DELAY
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise Invalid(f"_retry_policy: {name} must be an integer between 0 and {most}.")
    low, high = _of(policy, "minimum_delay"), _of(policy, "maximum_delay")
    if high - low < _LEAST_SPAN:
        raise Invalid(
            f"_retry_policy: maximum_delay ({high}) must be at least {_LEAST_SPAN} seconds above "
            f"minimum_delay ({low})."
        )


def chosen_policy(queue: Any, subscription: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    """The policy that holds: the subscription's, unless one of the two gives the queue's way."""
    of_queue, of_subscription = _valid(queue), _valid(subscription)
    key = "ignore_subscription_override"
    if (of_queue or {}).get(key) or (of_subscription or {}).get(key):
        return of_queue
    return of_subscription or of_queue


def retry_delay(policy: Mapping[str, Any] | None, attempts: int, luck: float) -> float | None:
    """Seconds until the next try after `attempts` failed ones; None when there is none left.

    `luck` is a number in [0, 1).
    """
    if policy is None:
        delay = DEFAULT_DELAYS[min(attempts, len(DEFAULT_DELAYS)) - 1]
        return delay * (1 + JITTER * (2 * luck - 1))
    delays = policy_delays(policy)
    return delays[attempts - 1] if attempts <= len(delays) else None


def policy_delays(policy: Mapping[str, Any]) -> Sequence[int]:
    """All delays of a policy in seconds, in their order."""
    low, high = _of(policy, "minimum_delay"), _of(policy, "maximum_delay")
    return [
        *[0] * _of(policy, "retries_with_no_delay"),
        *[low] * _of(policy, "minimum_delay_retries"),
        *_growing(_of(policy, "retry_backoff_function"), low, high),
        *[high] * _of(policy, "maximum_delay_retries"),
    ]


def _growing(function: str, low: int, high: int) -> Iterator[int]:
    """The delays between the minimum and the maximum (zaqar-behaviour 5.7)."""
    count = min((high - low) // _STEP, _MOST_RETRIES)
    if function == "linear":
        step = max(_STEP, math.ceil((high - low) / _MOST_RETRIES))
        yield from range(low, high, step)
    elif function == "arithmetic":
        step_of = 2 * (high - low) / (count * (count - 1)) if count > 1 else 0.0
        yield from (math.floor(low + (i - 1) * i * step_of / 2) for i in range(1, count + 1))
    else:
        ratio = (high / max(low, 1)) ** (1 / (count - 1)) if count > 1 else 1.0
        yield from (math.floor(max(low, 1) * ratio ** (i - 1)) for i in range(1, count + 1))


def _of(policy: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - an integer or a name
    value = policy.get(name)
    return _DEFAULTS[name] if value is None else value


def _valid(policy: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - any JSON
    """A stored policy; None where there is none, or one that this server would refuse."""
    try:
        check_policy(policy)
    except Invalid:
        return None
    return policy or None
