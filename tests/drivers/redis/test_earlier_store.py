"""A store that version 0.2.0 wrote is read, with every message in its state.

`store-0.2.0.json` holds its keys as DUMP gives them (base64), and the instant it was left at.
"""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ack, ids, new, texts
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.inspection import keys_by_tag
from tests.services import RedisServer
from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.models import DelayMode, QueueRef
from zaqar_lite.domain.posts import IdempotencyKey
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.storage.redis.keys import keys_of

pytestmark = pytest.mark.anyio
EARLIER = json.loads((Path(__file__).parent / "store-0.2.0.json").read_text(encoding="ascii"))


@pytest.fixture
async def earlier(own_redis: RedisServer, client: Any, open_queue: Open) -> QueueUnderTest:
    """Its queue, with a clock that stands where it was left."""
    client.flushall()
    for key, dumped in EARLIER["keys"].items():
        client.restore(key, 0, base64.b64decode(dumped))
    queue = await open_queue(own_redis.url)
    queue.advance(EARLIER["now_ms"] - int(time.time() * 1000))
    return queue.at(queue.stores).named("queue")


async def test_every_message_is_in_its_state(earlier: QueueUnderTest) -> None:
    everything = ["held", "parked", "delayed", "first", "ready", "keyed", "one", "two"]
    assert texts(await earlier.listed(limit=10)) == everything
    assert await earlier.counts() == (5, 2, 1)
    assert await earlier.held(EARLIER["claim"]) == ["held"]
    (held,) = (await earlier.get_claim(EARLIER["claim"])).messages
    assert (held.headers, held.claim_count) == ({"trace": "1"}, 1)
    assert await earlier.outcomes(EARLIER["claim"], ack(held.id)) == [Outcome.DONE]
    earlier.advance(11 * MINUTE)
    assert texts((await earlier.claim(2, mode=DelayMode.HONOUR)).messages) == ["parked", "delayed"]
    (parked,) = [one for one in await earlier.listed(limit=10) if one.body == b'"parked"']
    (attempt,) = await earlier.attempts(parked.id)
    assert (attempt.outcome, attempt.reason, attempt.detail) == (Ended.FAILED, "later", "busy")
    (letter,) = (await earlier.named("dead").claim(1)).messages
    assert letter.origin is not None
    assert (letter.origin.source, letter.origin.reason) == ("queue", "bad")


async def test_keys_and_records_are_known(earlier: QueueUnderTest) -> None:
    key = IdempotencyKey("k", b"x" * 16)
    assert await earlier.post(replace(new("keyed"), idempotency_key=key)) == [EARLIER["keyed"]]
    with pytest.raises(KeyReused):
        await earlier.post(replace(new("other"), idempotency_key=IdempotencyKey("k", b"z" * 16)))
    again = await earlier.stores.messages.post(
        earlier.ref, [], client_id="c", batch_key=IdempotencyKey("b", b"y" * 16), version=None
    )
    assert [one.id for one in again] == EARLIER["batch"]
    management = earlier.stores.management
    record = await management.get_queue(earlier.ref)
    assert record is not None
    assert record.metadata["colour"] == "red"
    assert await management.dead_letter_sources(QueueRef("project", "dead"), limit=5) == ["queue"]
    kept = await management.get_record("kind", "project", "name")
    assert kept is not None
    assert kept.value == b"{}"


async def test_bytes_are_right_once_it_was_empty(earlier: QueueUnderTest) -> None:
    """That version counted none."""
    await earlier.post("counted", "too")
    everything = await earlier.listed(limit=20)
    assert (await earlier.stats()).bytes == len(b'"counted""too"')
    await earlier.delete(*ids(everything[:-1]))
    assert (await earlier.stats()).bytes == 0
    await earlier.delete(*ids(everything[-1:]))
    await earlier.post("again")
    assert (await earlier.stats()).bytes == len(b'"again"')


async def test_keys_that_end_too_early_live_on_with_a_lease(
    queue: QueueUnderTest, client: Any
) -> None:
    """Versions before let them end before the horizon, which a longer ttl had moved."""
    await queue.post("a", ttl=MINUTE)
    claim_id = (await queue.claim()).claim_id
    await queue.post("b", ttl=336 * HOUR)
    keys = keys_by_tag(client)[keys_of(queue.ref).tag]
    for kind in ("held", "leases", "ids", "attempts"):
        client.expire(keys.get(kind, b"none"), 3_600)
    await queue.renew(claim_id or "", ttl=6 * HOUR)
    assert client.pttl(keys["held"]) > 336 * HOUR
    assert client.pttl(keys["leases"]) > 336 * HOUR
