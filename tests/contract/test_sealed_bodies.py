"""Sealed bodies come out of every store as they went in, and are in no store in the clear."""

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import some
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import ClaimRequest, DelayMode, ListQuery, QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service.encryption import EncryptionKeys, opening

pytestmark = pytest.mark.anyio
KEYS = {"first": b"1" * 32}
BODY = '{"card": "4111 1111", "name": "Zoë"}'.encode()


async def test_a_sealed_body_is_opened_on_every_way_out(stores: Stores, project: str) -> None:
    ref = QueueRef(project, "sealed")
    encryption_keys = EncryptionKeys(stores.management, KEYS, Clock())
    store = opening(stores.messages, encryption_keys)
    sealed = await encryption_keys.seal(ref, [NewMessage(BODY, 300_000) for _ in range(3)])
    assert all(b"card" not in one.body for one in sealed)
    posted = await store.post(ref, sealed, client_id="c", version=None)
    ids = [one.id for one in posted]

    assert [one.body for one in await store.get_messages(ref, ids)] == [BODY] * 3
    assert [one.body for one in await stores.messages.get_messages(ref, ids)] != [BODY] * 3
    assert (await store.list_messages(ref, ListQuery(10))).messages[0].body == BODY
    request = ClaimRequest(1, None, delay_mode=DelayMode.IGNORE, ttl_ms=60_000, client_id="c")
    claimed = await store.claim(ref, request)
    assert claimed.messages[0].body == BODY
    assert (await store.get_claim(ref, some(claimed.claim_id))).messages[0].body == BODY
    popped = await store.claim(
        ref, ClaimRequest(2, None, delay_mode=DelayMode.IGNORE, removes=True)
    )
    assert [one.body for one in popped.messages] == [BODY] * 2


async def test_processes_that_begin_at_once_agree_on_a_key(stores: Stores, project: str) -> None:
    ref = QueueRef(project, "sealed")
    vaults = [EncryptionKeys(stores.management, KEYS, Clock()) for _ in range(3)]
    sealed = [(await one.seal(ref, [NewMessage(BODY, 300_000)]))[0].body for one in vaults]
    assert len(await vaults[0].list_keys(ref.project)) == 1
    for body in sealed:
        for encryption_keys in vaults:
            assert await encryption_keys.open_body(ref.project, body) == BODY
