"""Versions: what was decided by an old record is refused before anything changes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.contract.serving import Server
from tests.contract.stores import Stores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ack, new
from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import DelayMode, QueueRecord
from zaqar_lite.service.policy import Policy

pytestmark = pytest.mark.anyio

Operation = Callable[[QueueUnderTest, str, int | None], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "post": lambda queue, _, version: queue.post("new", version=version),
    "post with keys": lambda queue, _, version: queue.post("new", batch_key="k", version=version),
    "list": lambda queue, _, version: queue.page(version=version),
    "edit": lambda queue, delayed, version: queue.edit(delayed, "edited", version=version),
    "claim": lambda queue, _, version: queue.claim(mode=DelayMode.HONOUR, version=version),
    "release delayed": lambda queue, _, version: queue.release_delayed(version=version),
    "pop": lambda queue, _, version: queue.pop(mode=DelayMode.HONOUR, version=version),
}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    name: str = request.param
    return OPERATIONS[name]


async def fill(queue: QueueUnderTest) -> str:
    await queue.post("ready")
    (delayed,) = await queue.post("delayed", delay=10 * MINUTE)
    return delayed


async def refuses(operation: Operation, queue: QueueUnderTest, version: int) -> None:
    """Fill the queue, see the operation refused, and see that nothing has changed."""
    delayed = await fill(queue)
    before = (await queue.bodies(), await queue.counts())
    with pytest.raises(QueueChanged):
        await operation(queue, delayed, version)
    assert (await queue.bodies(), await queue.counts()) == before
    (answer,) = await queue.post_all([new("new")], batch_key="k")
    assert not answer.duplicate  # a refused post has not left its key behind


async def test_the_right_version_is_served(queue: QueueUnderTest, operation: Operation) -> None:
    """0 without a record; and where none is given, none is checked."""
    management = queue.stores.management
    await operation(queue, await fill(queue), 0)
    await queue.purge()
    record, _ = await management.create_queue(queue.ref, {}, max_queues=100)
    await operation(queue, await fill(queue), record.version)
    record = await management.update_queue(
        QueueRecord(queue.ref, {"_default_message_delay": 5}, record.version)
    )
    for version in (record.version, None):
        (delayed,) = await queue.post("delayed", delay=10 * MINUTE, ttl=HOUR)
        await operation(queue, delayed, version)
    await queue.purge()
    await management.delete_queue(queue.ref, version=record.version)
    await operation(queue, await fill(queue), 0)


async def is_changed(queue: QueueUnderTest, record: QueueRecord) -> None:
    await queue.stores.management.update_queue(QueueRecord(queue.ref, {"a": 1}, record.version))


async def is_dropped(queue: QueueUnderTest, _: QueueRecord) -> None:
    await queue.drop()


async def is_made_again(queue: QueueUnderTest, record: QueueRecord) -> None:
    await queue.stores.management.delete_queue(queue.ref, version=record.version)
    await queue.stores.management.create_queue(queue.ref, {}, max_queues=100)


async def is_left_alone(_: QueueUnderTest, __: QueueRecord) -> None:
    """The version that is known is that of no record: it was made meanwhile."""


@pytest.mark.parametrize("change", [is_changed, is_dropped, is_made_again, is_left_alone])
async def test_an_old_version_is_refused(
    queue: QueueUnderTest,
    operation: Operation,
    change: Callable[[QueueUnderTest, QueueRecord], Awaitable[None]],
) -> None:
    """So that a post decided by a dropped queue leaves no message without a record, for one."""
    record, _ = await queue.stores.management.create_queue(queue.ref, {}, max_queues=100)
    await change(queue, record)
    await refuses(operation, queue, 0 if change is is_left_alone else record.version)


async def test_a_large_settlement_is_decided_by_one_version(queue: QueueUnderTest) -> None:
    management = queue.stores.management
    record, _ = await management.create_queue(queue.ref, {}, max_queues=100)
    # More than a step of those that settle in steps; where each is a request there are none.
    count = max(20, 200 // queue.stores.case.size_divisor)
    ids = await queue.post(*(["a"] * count))
    claim_id = await queue.claim_id(count)
    settled, _ = await asyncio.gather(
        queue.settle(claim_id, *map(ack, ids), version=record.version),
        management.update_queue(QueueRecord(queue.ref, {"x": 1}, record.version)),
        return_exceptions=True,
    )
    if isinstance(settled, QueueChanged):
        assert await queue.counts() == (0, 0, count)
    else:
        assert await queue.counts() == (0, 0, 0)


async def test_a_server_that_knows_an_old_record_decides_anew(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [Server(one) for one in await stores.peers(2)]

    async def post(policy: Policy) -> int:
        await queue.post("a", version=policy.version)
        return policy.default_ttl_ms

    await servers[0].queues.create(queue.ref, {"_default_message_ttl": 60})
    for server in servers:
        assert await server.policies.decide(queue.ref, post) == 60_000
    await servers[1].queues.change(queue.ref, lambda _: {"_default_message_ttl": 61})
    for server in servers:
        assert await server.policies.decide(queue.ref, post) == 61_000
