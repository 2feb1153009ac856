"""What a request reads of its queue's record: once at most, on a store that processes share."""

import pytest

from tests.api.conftest import Api, MakeApi
from tests.services import RedisServer
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.redis.management import RedisManagementStore

pytestmark = pytest.mark.anyio


class Reads:
    """The records that a management store was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[QueueRef] = []
        read = RedisManagementStore.get_queue

        async def count(store: RedisManagementStore, ref: QueueRef) -> QueueRecord | None:
            self.asked.append(ref)
            return await read(store, ref)

        monkeypatch.setattr(RedisManagementStore, "get_queue", count)

    def of(self, api: Api) -> int:
        """How often the record of the test's queue was read since the last call."""
        count = sum(ref.name == api.queue for ref in self.asked)
        self.asked.clear()
        return count


async def _act(api: Api, reads: Reads) -> dict[str, int]:
    """Make one request of each kind to a queue that is not there at first; the reads of each."""
    counted: dict[str, int] = {}
    await api.post({"body": 1}, {"body": 2}, {"body": 3})
    counted["post to no queue"] = reads.of(api)
    await api.post({"body": 4})
    counted["post"] = reads.of(api)
    assert len(await api.browse()) == 4
    counted["list"] = reads.of(api)
    (message,) = await api.claim(1)
    counted["claim"] = reads.of(api)
    await api.expect(204, "DELETE", message["href"])
    counted["delete"] = reads.of(api)
    await api.expect(200, "DELETE", "messages?pop=1")
    counted["pop"] = reads.of(api)
    return counted


async def test_a_request_reads_the_policy_once_at_most(
    make_api: MakeApi, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept by its version, unless the records are in a store of their own."""
    for stores, reads_of_each in (
        ({"store": redis_server.url}, 0),
        ({"store": "memory://", "management_store": redis_server.url}, 1),
    ):
        with monkeypatch.context() as patching:
            reads = Reads(patching)
            async with make_api(**stores) as api:
                counted = await _act(api, reads)
        assert max(counted.values()) <= 1, counted
        assert counted["claim"] == counted["pop"] == reads_of_each
