"""The records of groups: there for exactly the messages that are in one, whatever is in memory."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, Store
from zaqar_lite.domain.groups import GROUP_HEADER
from zaqar_lite.domain.models import ListQuery, Message, Move, QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata.format import keys, read_terminated
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio


def of(group: str, *, ttl: int = HOUR, copies: tuple[Copy, ...] = ()) -> NewMessage:
    return NewMessage(b'"a"', ttl, headers={GROUP_HEADER: group}, copies=copies)


async def listed(store: Store, group: str, queue: QueueRef = QUEUE) -> Sequence[Message]:
    selection = ListQuery(1_000, include_claimed=True, include_delayed=True, group=group)
    return (await store.messages.list_messages(queue, selection)).messages


async def ids(store: Store, group: str, queue: QueueRef = QUEUE) -> list[str]:
    return [one.id for one in await listed(store, group, queue)]


async def recorded(store: Store) -> list[tuple[str, str]]:
    """The queue and the group of each record of a group."""
    found = []
    for key in await store.records(RecordType.GROUP):
        queue, rest = keys.read_queue_key(key)
        found.append((keys.read_queue_id(queue).name, read_terminated(rest)[0].decode()))
    return found


async def test_groups_outlive_a_restart_and_go_with_their_messages(store: Store) -> None:
    posted = await store.post(*(of("g") for _ in range(600)), of("late", ttl=MINUTE))
    await store.restart()
    assert await ids(store, "g") == posted[:-1]
    # Nothing has read the headers of these.
    await store.restart()
    await store.messages.delete(QUEUE, posted[:5], claim_ids=None)
    await store.messages.move(QUEUE, posted[300:310], Move(OTHER, HOUR))
    store.clock.advance(MINUTE)
    await store.sweep()
    await store.restart()
    assert await ids(store, "g") == posted[5:300] + posted[310:-1]
    assert await ids(store, "g", OTHER) == posted[300:310]
    assert sorted(await recorded(store)) == [("other", "g")] * 10 + [("queue", "g")] * 585
    await store.messages.purge(QUEUE)
    await store.messages.drop(OTHER)
    assert await recorded(store) == []


async def test_copies_are_in_the_group_of_each_queue(store: Store) -> None:
    (message_id,) = await store.post(of("g", copies=(Copy(OTHER, HOUR, 0, 100),)))
    await store.restart()
    assert await ids(store, "g") == await ids(store, "g", OTHER) == [message_id]
    await store.messages.delete(QUEUE, [message_id], claim_ids=None)
    assert await recorded(store) == [("other", "g")]


async def test_messages_of_a_lost_page_are_in_their_group_again(tmp_path: Path) -> None:
    store = Store(f"opendata+slatedb://{tmp_path / 'damaged'}")
    await store.messages.open()
    posted = await store.post(*(of("g") for _ in range(3)), "other")
    page = keys.queue_key(RecordType.ACTIVE, keys.queue_id(QUEUE))
    await store.restart_damaged(page)
    assert await ids(store, "g") == posted[:3]
    await store.messages.delete(QUEUE, posted, claim_ids=None)
    assert await recorded(store) == []
    await store.messages.close()
