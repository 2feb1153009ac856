"""After every contract test: no key lives for ever, and the indexes agree with one another."""

import asyncio
from typing import Any

from tests.contract.stores import Stores
from tests.drivers.redis.inspection import check_kind, check_queue, keys_by_tag, raw

_checked: set[str] = set()
"""Queues of earlier tests; their names are never used again."""


async def after_test(stores: Stores) -> None:
    """Check every queue that the test has made."""
    with raw(stores.uri) as client:
        for _ in range(400):
            if not _on_their_way(client):
                break
            await asyncio.sleep(0.005)  # what follows an answer at once takes a moment
        for tag, keys in keys_by_tag(client).items():
            if tag.startswith("*kind:"):
                check_kind(client, tag, keys)
            if tag in _checked or "/" not in tag:
                continue
            _checked.add(tag)
            assert "outbox" not in keys, f"{tag}: dead letters have not arrived"
            check_queue(client, tag, keys, stores.clock.offset_ms)
        assert client.zcard("zl:intents:{*}") == 0, "a change of a record was not finished"


def _on_their_way(client: Any) -> set[str]:
    """The queues of this test that have letters in their outbox."""
    queues = keys_by_tag(client).items()
    return {tag for tag, keys in queues if tag not in _checked and "outbox" in keys}
