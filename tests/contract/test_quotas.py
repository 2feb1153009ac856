"""What a project has, counted over its queues in every store."""

import pytest

from tests.contract.stores import Stores
from zaqar_lite.domain.errors import QuotaReached
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.quotas import Quotas
from zaqar_lite.service.stock import Stock

pytestmark = pytest.mark.anyio
HOUR = 3_600_000


async def test_messages_of_all_queues_of_a_project_are_counted(
    stores: Stores, project: str
) -> None:
    for name, count in (("a", 3), ("b", 2)):
        ref = QueueRef(project, name)
        await stores.management.create_queue(ref, {}, max_queues=10)
        new = [NewMessage(b'"1234567"', HOUR) for _ in range(count)]
        await stores.messages.post(ref, new, client_id="c" * 32, version=None)
    stock = Stock(stores.messages, stores.management, lambda _: Quota(messages=6))
    assert await stock.counted(project) == (5, 45)
    assert await stock.counted(f"{project}-other") == (0, 0)
    await stock.admit(project, 1, 9)
    with pytest.raises(QuotaReached):
        await stock.admit(project, 1, 9)


async def test_quotas_are_kept_and_followed(stores: Stores, project: str) -> None:
    mine = Quotas(stores.management, Quota(queues=9), shared=True)
    theirs = Quotas(stores.management, Quota(queues=9), shared=True)
    await theirs.load()
    await mine.set(project, {"queues": 1, "bytes": None})
    await theirs.load()
    for quotas in (mine, theirs):
        assert quotas.of(project).queues == 1
        assert await quotas.own(project) == {"queues": 1, "bytes": None}
    await theirs.reset(project)
    await mine.load()
    assert mine.of(project).queues == 9
    assert await mine.own(project) == {}
