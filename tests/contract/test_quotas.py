"""What a project has, counted over its queues in every store."""

import random
from collections import deque

import pytest

from tests.contract.stores import Stores
from zaqar_lite.domain.errors import QuotaReached
from zaqar_lite.domain.models import ClaimRequest, DelayMode, QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.quotas import quota_usage as stock_module
from zaqar_lite.service.quotas.quota_usage import COUNT_EVERY, MessageQuota

pytestmark = pytest.mark.anyio
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a count as long as a store on a busy machine takes."""
    monkeypatch.setattr(stock_module, "_PATIENCE", 60.0)


async def test_messages_of_all_queues_of_a_project_are_counted(
    stores: Stores, project: str
) -> None:
    for name, count in (("a", 3), ("b", 2)):
        ref = QueueRef(project, name)
        await stores.management.create_queue(ref, {}, max_queues=10)
        new = [NewMessage(b'"1234567"', HOUR) for _ in range(count)]
        await stores.messages.post(ref, new, client_id="c" * 32, version=None)
    stock = MessageQuota(stores.messages, stores.management, lambda _: Quota(messages=6))
    assert await stock.counted(project) == (5, 45)
    assert await stock.counted(f"{project}-other") == (0, 0)
    await stock.admit(project, 1, 9)
    with pytest.raises(QuotaReached):
        await stock.admit(project, 1, 9)


async def test_bytes_are_right_where_messages_leave_in_the_order_they_came(
    stores: Stores, project: str
) -> None:
    """Sizes from 100 to 10,000 bytes, in a backlog that grows."""
    ref, now, sizes = QueueRef(project, "q"), [0.0], random.Random(7)
    await stores.management.create_queue(ref, {}, max_queues=10)
    stock = MessageQuota(
        stores.messages, stores.management, lambda _: Quota(), monotonic=lambda: now[0]
    )
    there: deque[int] = deque()
    worst = 0.0
    for _ in range(12):
        posted = [round(10 ** sizes.uniform(2, 4)) for _ in range(10)]
        await stock.admit(project, len(posted), sum(posted))
        new = [NewMessage(b'"%b"' % (b"x" * (size - 2)), HOUR) for size in posted]
        await stores.messages.post(ref, new, client_id="c" * 32, version=None)
        there.extend(posted)
        popped = await stores.messages.claim(
            ref, ClaimRequest(7, None, DelayMode.IGNORE, removes=True)
        )
        for message in popped.messages:
            assert len(message.body) == there.popleft()
        now[0] += 2 * COUNT_EVERY
        counted = await stock.counted(project)
        assert counted is not None
        assert counted.messages == len(there)
        if len(there) > 15:  # a few messages are no average
            worst = max(worst, abs(counted.bytes / sum(there) - 1))
    assert 0 < worst < 0.15, worst
    started = MessageQuota(stores.messages, stores.management, lambda _: Quota())
    guessed = await started.counted(project)  # a process that posted none of them
    assert guessed is not None
    assert guessed.messages == len(there)
    assert len(there) * min(there) <= guessed.bytes <= len(there) * max(there)
