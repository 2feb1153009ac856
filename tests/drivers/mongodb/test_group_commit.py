"""What one transaction of gathered posts may hold."""

from collections import deque

import pytest

from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.mongodb.group_commit import (
    MOST_BYTES,
    MOST_MESSAGES,
    PendingPost,
    _next_batch,
)

pytestmark = pytest.mark.anyio


def a_post(count: int, size: int = 1) -> PendingPost:
    messages = [NewMessage(b"1" * size, 60_000)] * count
    return PendingPost(messages, client_id="c", batch_key=None, version=None)


async def test_a_transaction_holds_a_thousand_messages_at_most() -> None:
    fits, over = a_post(MOST_MESSAGES - 1), a_post(1)
    waiting = deque([a_post(1), fits, over])
    assert [len(post.messages) for post in _next_batch(waiting)] == [1, MOST_MESSAGES - 1]
    assert _next_batch(waiting) == [over]
    assert not waiting


async def test_a_transaction_holds_eight_mebibytes_at_most_or_one_post() -> None:
    half = MOST_BYTES // 2 - 300  # with its other fields
    first, second, third = a_post(1, half), a_post(1, half), a_post(1)
    waiting = deque([first, second, third])
    assert _next_batch(waiting) == [first, second]
    large = a_post(1, MOST_BYTES)
    waiting.appendleft(large)
    assert _next_batch(waiting) == [large]
    assert _next_batch(waiting) == [third]
