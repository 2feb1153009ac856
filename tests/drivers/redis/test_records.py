"""Records and the indexes over them: a crash between two slots is mended by the sweep."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest
from tests.drivers.redis.steps import crash_before
from tests.failing import failing
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.redis.keys import keys_of, keys_of_project
from zaqar_lite.storage.redis.router import Router

pytestmark = pytest.mark.anyio


async def create(queue: QueueUnderTest, **metadata: Any) -> QueueRecord:
    management = queue.stores.management
    record, _ = await management.create_queue(queue.ref, metadata, max_queues=1_000_000)
    return record


async def heal(queue: QueueUnderTest, client: Any) -> None:
    queue.advance(MINUTE)
    await queue.stores.messages.sweep(1000)
    assert client.zcard("zl:intents:{*}") == 0


async def test_a_name_whose_record_was_never_written_goes(
    queue: QueueUnderTest, client: Any
) -> None:
    queue = QueueUnderTest(queue.stores, QueueRef(f"project-{queue.ref.name}", "q"))
    with crash_before("create_queue"), pytest.raises(Unavailable):
        await create(queue)
    management = queue.stores.management
    assert await management.list_queues(queue.ref.project, limit=10) == []
    await heal(queue, client)
    assert await management.count_queues(queue.ref.project) == 0
    await create(queue)
    assert await management.count_queues(queue.ref.project) == 1


@pytest.mark.parametrize("change", ["update", "delete", "drop"])
async def test_an_index_that_was_not_changed_is_mended(
    queue: QueueUnderTest, client: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = QueueUnderTest(queue.stores, QueueRef(f"project-{queue.ref.name}", "q"))
    management, project = queue.stores.management, queue.ref.project
    record = await create(queue, _dead_letter_queue="old")
    crash = failing(Unavailable("crash"))
    updated_record = QueueRecord(
        queue.ref, {"_dead_letter_queue": "new"}, record.version, exposing=True
    )
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "update": lambda: management.update_queue(updated_record),
        "delete": lambda: management.delete_queue(queue.ref, version=record.version),
        "drop": lambda: queue.stores.messages.purge(queue.ref, forget=True),
    }
    with monkeypatch.context() as patch:
        patch.setattr("zaqar_lite.storage.redis.records.RecordIndexes._reindex", crash)
        await acts[change]()  # it is done, whatever becomes of the indexes
    assert await management.dead_letter_sources(QueueRef(project, "old"), limit=9) == []
    await heal(queue, client)
    updated = change == "update"
    tags = client.smembers(f"zl:sources:{{{project}/old}}")
    assert tags == set()
    new_sources = await management.dead_letter_sources(QueueRef(project, "new"), limit=9)
    assert new_sources == (["q"] if updated else [])
    exposing = [r.queue for r in await management.exposing_queues(limit=100)]
    assert (queue.ref in exposing) == updated
    assert await management.count_queues(project) == int(updated)


async def test_a_filter_over_many_queues_is_examined_in_pages(
    queue: QueueUnderTest, client: Any
) -> None:
    project, pipe = f"project-{queue.ref.name}", client.pipeline()
    for number in range(3_000):
        name = f"queue-{number:04}"
        metadata = {"env": "prod" if number in {7, 2_500} else "test", "other": 1}
        pipe.zadd(keys_of_project(project).key("names"), {name: 0})
        pipe.hset(
            keys_of(QueueRef(project, name)).key("queue"),
            mapping={"version": 1, "metadata": json.dumps(metadata), "exposing": ""},
        )
    pipe.execute()
    management = queue.stores.management
    marker, pages, costs = None, [], []
    while True:
        client.config_resetstat()
        found = await management.list_queues(
            project, marker=marker, limit=10, metadata={"env": "prod"}
        )
        costs.append(client.info("commandstats")["cmdstat_hmget"]["calls"])
        if not found:
            break
        pages.append([record.queue.name for record in found])
        marker = found[-1].queue.name
    assert pages == [["queue-0007"], ["queue-2500"]]
    assert costs[0] <= 1_100
    client.config_resetstat()
    assert len(await management.list_queues(project, limit=20)) == 20
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 20


async def test_lists_take_turns_and_read_a_few_records_together(queue: QueueUnderTest) -> None:
    management, project = queue.stores.management, f"project-{queue.ref.name}"
    for number in range(50):
        await create(QueueUnderTest(queue.stores, QueueRef(project, f"queue-{number}")))
    under_way, most = 0, 0
    command = Router.command

    async def watched(self: Router, slot: int, *words: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await command(self, slot, *words)
        finally:
            under_way -= 1

    lists = [management.list_queues(project, limit=1, metadata={"none": 1}) for _ in range(5)]
    with patch.object(Router, "command", watched):
        assert await asyncio.gather(*lists) == [[]] * 5
    assert most < 25, "20 records, and the names that others look up"
