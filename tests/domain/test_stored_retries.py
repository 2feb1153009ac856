"""Retry attributes that a server stored before it knew them."""

from typing import Any

import pytest

from zaqar_lite.domain.metadata import retries
from zaqar_lite.domain.models import NO_LIMIT, QueueRef

QUEUE = QueueRef("project", "queue")


@pytest.mark.parametrize("value", ["3", 0, -1, True, 1.5, [], {}, 65_536])
def test_a_stored_limit_that_would_be_refused_counts_as_absent(value: Any) -> None:
    dead = {"_dead_letter_queue": "dead", "_dead_letter_queue_messages_ttl": 60}
    for place in (dead, {"_failed_retention": 60}):
        letter = retries(QUEUE, {**place, "_max_failures": value}).dead_letter
        assert letter is not None
        assert (letter.ttl_ms, letter.max_failures) == (60_000, NO_LIMIT)


@pytest.mark.parametrize("value", ["fast", 5, [], {}, {"type": "list"}, {"type": ["list"]}])
def test_a_stored_backoff_that_would_be_refused_counts_as_absent(value: Any) -> None:
    assert retries(QUEUE, {"_retry_backoff": value}).backoff is None
