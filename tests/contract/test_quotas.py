"""What a project has, counted over its queues in every store."""

from functools import partial

import pytest

from tests.contract.stores import Stores
from zaqar_lite.domain.errors import QuotaReached
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.quotas import quota_usage
from zaqar_lite.service.quotas.quota_usage import MessageQuota
from zaqar_lite.service.quotas.quotas import Quotas

pytestmark = pytest.mark.anyio
HOUR = 3_600_000


async def test_messages_and_bytes_of_all_queues_of_a_project_are_counted(
    stores: Stores, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_usage, "_PATIENCE", 60.0)  # a busy machine

    async def no() -> bool:
        return False

    quotas = Quotas(stores.management, Quota(messages=6), shared=False)
    quota = MessageQuota(stores.messages, stores.management, quotas)
    new = [NewMessage(b'"1234567"', HOUR)]
    for name, count in (("a", 3), ("b", 2)):
        ref = QueueRef(project, name)
        await stores.management.create_queue(ref, {}, max_queues=10)
        await stores.messages.post(ref, new * count, client_id="c" * 32, version=None)
    assert await quota.usage(project) == (5, 45)
    assert await quota.usage(f"{project}-other") == (0, 0)
    post = partial(stores.messages.post, ref, new, client_id="c" * 32, version=None)
    await quota.post(project, (9,), post, no)
    with pytest.raises(QuotaReached):
        await quota.post(project, (9,), post, no)
