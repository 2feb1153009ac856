"""What every operation costs, by whatever a driver's tests can count: requests, commands, calls."""

from collections.abc import Callable
from typing import TypeVar

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ack, extend, fail, ids, new, texts
from zaqar_lite.domain.models import DelayMode

T = TypeVar("T")
TWENTY = [str(number) for number in range(20)]


async def costs(queue: QueueUnderTest, taken: Callable[[], T]) -> dict[str, T]:
    """Do each operation with twenty messages; answer what it cost.

    `taken` tells the costs since it was last asked. In the queue may be messages that are claimed,
    none that is ready.
    """
    found: dict[str, T] = {}

    def note(operation: str) -> None:
        found[operation] = taken()

    await queue.delete(*await queue.post("the first post of a process may look around"))
    taken()
    first = await queue.post("a")
    note("post of one")
    posted = await queue.post(*TWENTY)
    note("post")
    assert len((await queue.page(limit=20, claimed=False)).messages) == 20
    note("page")
    assert len(await queue.get(*posted)) == 20
    note("get")
    await queue.get(*posted, details=True)
    note("get with attempts")
    await queue.stats()
    note("stats")
    claim_id = await queue.claim_id(20)
    note("claim")
    await queue.get_claim(claim_id)
    note("get_claim")
    await queue.renew(claim_id)
    note("renew")
    await queue.release(claim_id)
    note("release")
    claim_id = await queue.claim_id(20)
    note("second claim")
    await queue.get(*first, *posted[:-1], details=True)
    note("get with an attempt each")
    assert not await queue.delete(*first, *posted[:-1], claims=[claim_id])
    note("delete by a claim")
    assert not await queue.delete(posted[-1])
    note("delete of one")

    keyed = [new(text, key=f"k{text}") for text in TWENTY]
    await queue.post(*keyed, batch_key="batch")
    note("post with keys")
    await queue.post(*keyed, batch_key="batch")
    note("the same post again")
    assert len((await queue.pop(20)).messages) == 20
    note("pop")

    await queue.post(*TWENTY, delay=MINUTE)
    taken()
    waiting = ids(await queue.listed(claimed=False))
    taken()
    await queue.edit(waiting[0], ttl=30 * MINUTE)
    note("edit of a ttl")
    await queue.edit(waiting[0], "edited")
    note("edit of a body")
    queue.advance(2 * MINUTE)
    taken()
    claimed = await queue.claim(20, mode=DelayMode.HONOUR, ttl=5 * MINUTE)
    assert texts(claimed.messages) == ["edited", *TWENTY[1:]]
    note("claim of what is due")
    claim_id = claimed.claim_id or ""
    await queue.settle(claim_id, *map(ack, waiting[:10]))
    note("acknowledge ten")
    await queue.settle(claim_id, *(extend(one, HOUR) for one in waiting[10:15]))
    note("extend five")
    await queue.settle(claim_id, *map(fail, waiting[10:20]))
    note("fail ten")
    await queue.claim(10, ttl=MINUTE)
    queue.advance(2 * MINUTE)
    taken()
    assert len((await queue.claim(10)).messages) == 10
    note("claim of ten that lapsed")
    await queue.purge()
    note("purge")
    return found
