"""A queue's policy for failed messages, as arguments of scripts (`parts/policy.lua`)."""

from functools import lru_cache

from zaqar_lite.domain.attempts import Backoff
from zaqar_lite.domain.models import QueueRef, RetryPolicy
from zaqar_lite.domain.refusals import no_failed_list
from zaqar_lite.storage.redis.keys import tag_of


def policy_words(
    queue: QueueRef, retries: RetryPolicy, armed_until: int = 0
) -> tuple[str | int | bytes, ...]:
    """Return the policy of a queue as arguments.

    Until `armed_until` the sweep is sure to visit the queue, so dead letters may leave it.

    Raises:
        Unsupported: the queue is to keep its dead letters itself.
    """
    return armed_until or "", *_policy(queue, retries)


@lru_cache(maxsize=1_000)
def _policy(queue: QueueRef, retries: RetryPolicy) -> tuple[str | int | bytes, ...]:
    delays, jitter = _pack_backoff(retries.backoff)
    letter = retries.dead_letter
    if letter is None:
        return "", "", "", "", "", delays, jitter
    if letter.target is None:
        raise no_failed_list("Redis")
    ttl = "" if letter.ttl_ms is None else letter.ttl_ms
    limits = letter.max_claims, letter.max_failures
    return *limits, tag_of(letter.target), ttl, queue.name, delays, jitter


def _pack_backoff(backoff: Backoff | None) -> tuple[bytes, str]:
    """Return a back-off as bytes: its delays, and its jitter if it has one."""
    if backoff is None:
        return b"", ""
    delays = b"".join(delay.to_bytes(6, "big") for delay in backoff.delays_ms)
    return delays, str(backoff.jitter) if backoff.jitter else ""
