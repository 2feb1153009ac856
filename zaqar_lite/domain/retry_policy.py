"""When a delivery is tried again: Zaqar's `_retry_policy`, or ours where there is none.

A policy has four phases: at once, after the minimum, ever longer from the minimum to the maximum,
and after the maximum. Without a policy a delivery is tried again for as long as its message lives.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from zaqar_lite.domain.attempts import Backoff
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.json_values import read_json

ATTRIBUTE = "_retry_policy"
_DEFAULT = Backoff((5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000), jitter=0.2)
_LEAST_SPAN = 10
_STEP = 5
_MOST_RETRIES = 100
_Retries = Annotated[int, Meta(ge=0, le=_MOST_RETRIES)]
_Seconds = Annotated[int, Meta(ge=0, le=86_400)]


class DeliveryPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """A `_retry_policy` with upstream's defaults."""

    retries_with_no_delay: _Retries = 3
    minimum_delay_retries: _Retries = 3
    minimum_delay: _Seconds = 5
    maximum_delay: _Seconds = 30
    maximum_delay_retries: _Retries = 3
    retry_backoff_function: Literal["linear", "arithmetic", "geometric", "exponential"] = "linear"
    ignore_subscription_override: bool = False

    @property
    def delays(self) -> Sequence[int]:
        """All delays in seconds, in their order."""
        low, high = self.minimum_delay, self.maximum_delay
        return [
            *[0] * self.retries_with_no_delay,
            *[low] * self.minimum_delay_retries,
            *_growing(self.retry_backoff_function, low, high),
            *[high] * self.maximum_delay_retries,
        ]


def parse_policy(document: Any) -> DeliveryPolicy | None:  # noqa: ANN401 - any JSON
    """Read a `_retry_policy`; an empty one or None counts as none.

    Raises:
        Invalid: names the key that is wrong and what it may hold.
    """
    if document in (None, {}):
        return None
    policy: DeliveryPolicy = read_json(document, DeliveryPolicy, ATTRIBUTE)
    if policy.maximum_delay - policy.minimum_delay < _LEAST_SPAN:
        raise Invalid(
            f"_retry_policy: maximum_delay ({policy.maximum_delay}) must be at least "
            f"{_LEAST_SPAN} seconds above minimum_delay ({policy.minimum_delay})."
        )
    return policy


def chosen_policy(queue: Any, subscription: Any) -> DeliveryPolicy | None:  # noqa: ANN401
    """The policy that holds: the subscription's, unless one of the two gives the queue's way."""
    of_queue, of_subscription = _valid(queue), _valid(subscription)
    if any(one and one.ignore_subscription_override for one in (of_queue, of_subscription)):
        return of_queue
    return of_subscription or of_queue


def retry_delay(policy: DeliveryPolicy | None, attempts: int, luck: float) -> float | None:
    """Seconds until the next try after `attempts` failed ones; None when there is none left.

    `luck` is a number in [0, 1).
    """
    if policy is None:
        return _DEFAULT.delay_ms(attempts, luck) / 1000
    delays = policy.delays
    return delays[attempts - 1] if attempts <= len(delays) else None


def _growing(function: str, low: int, high: int) -> Iterator[int]:
    """The delays between the minimum and the maximum, two at least (zaqar-behaviour 5.7)."""
    count = min((high - low) // _STEP, _MOST_RETRIES)
    if function == "linear":
        step = max(_STEP, math.ceil((high - low) / _MOST_RETRIES))
        yield from range(low, high, step)
    elif function == "arithmetic":
        step_of = 2 * (high - low) / (count * (count - 1))
        yield from (math.floor(low + (i - 1) * i * step_of / 2) for i in range(1, count + 1))
    else:
        ratio = (high / max(low, 1)) ** (1 / (count - 1))
        yield from (math.floor(max(low, 1) * ratio ** (i - 1)) for i in range(1, count + 1))


def _valid(document: Any) -> DeliveryPolicy | None:  # noqa: ANN401 - any JSON
    """A stored policy; None where there is none, or one that this server would refuse."""
    try:
        return parse_policy(document)
    except Invalid:
        return None
