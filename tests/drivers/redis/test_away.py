"""One node of several is away: what has its keys elsewhere is tidied up all the same."""

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import NO_RETRIES, DeadLetter, QueueRef, RetryPolicy
from zaqar_lite.storage.redis.keys import EVERYWHERE, Keys, keys_of
from zaqar_lite.storage.redis.router import Router

pytestmark = pytest.mark.anyio


def away(keys: Keys) -> Any:
    """Let every call to a slot fail, as if its node did not answer."""
    call = Router._call

    async def failing(self: Router, slot: int, *args: Any, **options: Any) -> Any:
        if slot == keys.slot:
            raise Unavailable("The node is away.")
        return await call(self, slot, *args, **options)

    return patch.object(Router, "_call", failing)


async def with_ended_messages(queue: QueueUnderTest) -> QueueUnderTest:
    """Let a message end in the queue, and a later one in another queue; return that one."""
    other = queue.named(f"{queue.ref.name}-other")
    await queue.post("a", ttl=MINUTE)
    await other.post("b", ttl=2 * MINUTE)
    queue.advance(3 * MINUTE)
    return other


@pytest.mark.parametrize("trouble", ["away", "policy", "queue", "expiry", "outbox"])
async def test_the_sweep_passes_over_a_queue_in_trouble(
    queue: QueueUnderTest, client: Any, trouble: str
) -> None:
    """Its node is away, its policy of a store that keeps failed messages, or a key is damaged."""
    other, keys = await with_ended_messages(queue), keys_of(queue.ref)
    odd = RetryPolicy(DeadLetter(None, 1, 0)) if trouble == "policy" else NO_RETRIES

    async def read(ref: QueueRef) -> RetryPolicy:
        await queue.stores.management.get_queue(ref)
        return odd if ref == queue.ref else NO_RETRIES

    if trouble in {"queue", "expiry", "outbox"}:
        client.delete(keys.key(trouble))
        client.set(keys.key(trouble), "no such thing")
    with away(keys) if trouble == "away" else nullcontext():
        await queue.stores.messages.sweep(1_000, read)
    assert client.hlen(keys_of(other.ref).key("messages")) == 0
    if trouble == "away":
        assert client.hlen(keys.key("messages")) == 1
        queue.advance(MINUTE)
        await queue.stores.messages.sweep(1_000, read)
        assert client.hlen(keys.key("messages")) == 0
    client.delete(keys.key("queue"), keys.key("expiry"), keys.key("outbox"))


async def test_a_queue_whose_node_has_a_slower_clock_is_visited_once(queue: QueueUnderTest) -> None:
    """By the clock of the node that has the index it is due, by its own it is not."""
    await queue.post("a", delay=3_000)
    visited: list[Any] = []
    run = Router.run

    async def ahead(self: Router, operation: str, keys: Keys, *words: Any, **options: Any) -> Any:
        reply = await run(self, operation, keys, *words, **options)
        if operation == "sweep" and keys is keys_of(queue.ref):
            visited.append(reply)
        if operation == "visits" and keys is EVERYWHERE:
            now, index = reply[0] + 5_000, EVERYWHERE.key("visits")
            query = "ZRANGEBYSCORE", index, "-inf", now, "WITHSCORES", "LIMIT", 0, words[0]
            return [now, await self.command(EVERYWHERE.slot, *query)]
        return reply

    with patch.object(Router, "run", ahead):
        await queue.stores.messages.sweep(1_000)
    assert len(visited) == 1


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_the_sweep_passes_over_records_of_a_kind_that_is_away(
    queue: QueueUnderTest, client: Any, is_damaged: bool
) -> None:
    management, kinds = queue.stores.management, ("one", "other")
    for number, kind in enumerate(kinds, 1):
        name = f"{queue.ref.name}-{kind}"
        await management.put_record(name, "p", "n", b"x", expected=0, ttl_ms=number * MINUTE)
    keys = [Keys(f"*kind:{queue.ref.name}-{kind}", "kind") for kind in kinds]
    queue.advance(3 * MINUTE)
    kept = client.dump(keys[0].key("ends"))
    if is_damaged:
        client.set(keys[0].key("ends"), "no such thing")
    with nullcontext() if is_damaged else away(keys[0]):
        assert await management.sweep_records(1_000) == 1
    assert [client.hlen(one.key("values")) for one in keys] == [1, 0]
    client.restore(keys[0].key("ends"), 0, kept, replace=True)
    assert await management.sweep_records(1_000) == 0  # it is passed over for some seconds
    queue.advance(MINUTE)
    assert await management.sweep_records(1_000) == 1
