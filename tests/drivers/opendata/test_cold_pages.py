"""A queue of which only the head is in memory behaves as one that is wholly there.

Pages of three entries, at most four in memory: the memory store says what is right.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, NotFound
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import (
    ClaimRequest,
    DelayMode,
    Edit,
    ListQuery,
    Message,
    Move,
    QueueRef,
    StoreOptions,
)
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata import (
    checkpoint,
    claiming,
    due,
    entries,
    messages,
    paging,
    posting,
    queue,
    queues,
    sweeping,
)
from zaqar_lite.storage.opendata.engine import Damage, Stored
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio
QUEUE, OTHER = QueueRef("project", "queue"), QueueRef("project", "other")
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of three entries, no slack, and steps of a few entries."""
    for module in (checkpoint, entries, paging, posting, queue, sweeping):
        monkeypatch.setattr(module, "PAGE_SIZE", 3)
    for module in (claiming, due, messages, sweeping):
        monkeypatch.setattr(module, "STEP", 4)
    monkeypatch.setattr(queues, "_PAGE_BYTES", 0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[OpenDataMessageStore]:
    standing = Clock(monotonic=lambda: 0.0)  # or two stores would not act at one instant
    opened = make(tmp_path, standing)
    async with opened:
        yield opened
        await check_database(opened._db)


def make(path: Path, clock: Clock) -> OpenDataMessageStore:
    options = StoreOptions(extra={"page_cache_bytes": 4 * queues.ENTRY_BYTES})
    messages, _ = create_stores(f"opendata+slatedb://{path / 'data'}", clock=clock, options=options)
    assert isinstance(messages, OpenDataMessageStore)
    return messages


async def post(store: MessageStore, texts: list[str], *, delay: int = 0, ttl: int = HOUR) -> None:
    new = [NewMessage(json.dumps(text).encode(), ttl, delay) for text in texts]
    await store.post(QUEUE, new, client_id="producer", version=None)


async def claim(store: MessageStore, limit: int) -> tuple[str | None, list[Message]]:
    claimed = await store.claim(
        QUEUE,
        ClaimRequest(
            limit=limit,
            ttl_ms=60_000,
            grace_ms=60_000,
            client_id="c",
            delay_mode=DelayMode.HONOUR,
            version=None,
        ),
    )
    return claimed.claim_id, list(claimed.messages)


async def listed(store: MessageStore) -> list[Message]:
    page = await store.list_messages(
        QUEUE, ListQuery(limit=1_000, include_claimed=True, include_delayed=True)
    )
    return list(page.messages)


def texts(messages: list[Message]) -> list[str]:
    return [json.loads(message.body) for message in messages]


def in_memory(store: OpenDataMessageStore) -> int:
    there = store._db.queues.get(QUEUE)
    assert there is not None
    return sum(len(page.entries) for page in there.pages)


async def test_pages_that_were_dropped_take_no_room_of_those_in_memory(
    store: OpenDataMessageStore,
) -> None:
    for _ in range(5):
        await post(store, [str(number) for number in range(30)])
        await store.claim(
            QUEUE, ClaimRequest(limit=30, delay_mode=DelayMode.HONOUR, version=None, removes=True)
        )
    await post(store, ["last"])
    await store.sweep(100)
    assert store._db.page_cache.size == in_memory(store) * queues.ENTRY_BYTES


async def test_the_tail_of_a_long_queue_stays_on_disk(
    store: OpenDataMessageStore, tmp_path: Path
) -> None:
    numbers = [str(number) for number in range(60)]
    for number in numbers:
        await post(store, [number])
    await store.sweep(100)
    assert in_memory(store) <= 8
    stats = await store.stats(QUEUE)
    assert (stats.ready, stats.newest and json.loads(stats.newest.body)) == (60, "59")
    handed_out = []
    for _ in range(10):
        claim_id, messages = await claim(store, 6)
        assert len(messages) == 6
        handed_out += texts(messages)
        await store.delete(QUEUE, [m.id for m in messages], claim_ids=[claim_id or ""])
    assert handed_out == numbers


async def test_a_claim_over_many_cold_pages_looks_at_each_entry_about_once(
    store: OpenDataMessageStore,
) -> None:
    numbers = [str(number) for number in range(60)]
    await post(store, numbers)
    await store.sweep(100)
    there = store._db.queues.get(QUEUE)
    assert there is not None
    examined = there.examined
    assert texts((await claim(store, 20))[1]) == numbers[:20]
    assert there.examined - examined <= 20  # loaded one by one, its seven pages made 83 of it
    examined = there.examined
    found = await asyncio.gather(*(claim(store, 10) for _ in range(4)))
    assert sorted(int(text) for _, claimed in found for text in texts(claimed)) == [*range(20, 60)]
    assert there.examined - examined <= 60


@pytest.mark.parametrize("state", ["delayed", "claimed", "parked"])
async def test_what_waits_leaves_memory_too(state: str, store: OpenDataMessageStore) -> None:
    numbers = [str(number) for number in range(60)]
    await post(store, numbers, delay=60_000 if state == "delayed" else 0)
    while state != "delayed" and (claim_id := (await claim(store, 6))[0]):
        if state == "parked":
            await store.release(QUEUE, claim_id, delay_ms=60_000)
    await post(store, ["last"], delay=60_000)
    await store.sweep(100)
    assert in_memory(store) <= 8
    stats = await store.stats(QUEUE)
    waits = 1 if state == "claimed" else 61
    assert (stats.ready, stats.delayed, stats.claimed) == (0, waits, 61 - waits)
    store._db.clock.advance(60_000)
    assert (await store.stats(QUEUE)).ready == 61
    assert in_memory(store) <= 24  # the leases end when somebody claims, and their pages come in
    handed_out: list[str] = []
    for _ in range(40):
        handed_out += texts((await claim(store, 6))[1])
    assert handed_out == [*numbers, "last"]


async def test_a_restart_loads_the_head_only(tmp_path: Path) -> None:
    clock = Clock()
    async with make(tmp_path, clock) as first:
        for number in range(60):
            await post(first, [str(number)])
        ids = [message.id for message in await listed(first)]
    async with make(tmp_path, clock) as again:
        assert in_memory(again) <= 8
        (found,) = await again.get_messages(QUEUE, ids[40:41])
        assert json.loads(found.body) == "40"
        assert await again.delete(QUEUE, ids[50:51], claim_ids=None) == ()
        assert len(await listed(again)) == 59
        await check_database(again._db)


async def test_a_post_after_a_restart_hides_nothing(tmp_path: Path) -> None:
    """The last page of a long queue is only on disk then."""
    clock = Clock()
    numbers = [str(number) for number in range(60)]
    async with make(tmp_path, clock) as first:
        await post(first, numbers)
    async with make(tmp_path, clock) as again:
        await post(again, ["60"])
        assert texts(await listed(again)) == [*numbers, "60"]
        handed_out = []
        while messages := (await claim(again, 6))[1]:
            handed_out += texts(messages)
        assert handed_out == [*numbers, "60"]
        await check_database(again._db)


async def test_what_expires_on_disk_is_gone_at_its_instant(store: OpenDataMessageStore) -> None:
    for number in range(30):
        await post(store, [str(number)], ttl=60_000 + number)
    await store.sweep(100)
    store._db.clock.advance(60_020)
    left = (await store.stats(QUEUE)).ready
    assert left < 30
    assert len(await listed(store)) <= left
    store._db.clock.advance(60_000)
    assert (await store.stats(QUEUE)).total == 0


async def test_purging_removes_what_is_on_disk_too(store: OpenDataMessageStore) -> None:
    for number in range(40):
        await post(store, [str(number)])
    await store.purge(QUEUE)
    assert await listed(store) == []
    for _ in range(5):
        await store.sweep(1_000)
    await post(store, ["new"])
    assert texts(await listed(store)) == ["new"]


def evict_all(store: OpenDataMessageStore) -> None:
    """Evict every page that is saved."""
    page_cache = store._db.page_cache
    limit, page_cache.limit = page_cache.limit, 0
    paging.evict_pages(store._db)
    page_cache.limit = limit


@pytest.mark.parametrize("cancelled_at", [3, 4])
async def test_readers_that_load_expired_pages_together_leave_none(
    store: OpenDataMessageStore, monkeypatch: pytest.MonkeyPatch, cancelled_at: int
) -> None:
    """One of them took others off the list, which a client that went away would have loaded."""
    monkeypatch.setattr(due, "STEP", 40)
    for texts_of, ttl in ((12, HOUR), (60, 60_000), (12, HOUR)):
        await post(store, ["text"] * texts_of, ttl=ttl)
    await store.sweep(100)
    evict_all(store)
    store._db.clock.advance(61_000)
    get, loads = store._db.engine.get, 0

    async def counted(wanted: Sequence[bytes]) -> dict[bytes, Stored]:
        nonlocal loads
        loads += 1
        if loads == cancelled_at:
            first.cancel()
        return await get(wanted)

    monkeypatch.setattr(store._db.engine, "get", counted)
    first = asyncio.create_task(store.stats(QUEUE))
    await asyncio.gather(first, store.stats(QUEUE), return_exceptions=True)
    for _ in range(20):
        await store.sweep(100)
    assert (await store.stats(QUEUE)).total == 24


async def test_what_has_expired_on_disk_makes_room(tmp_path: Path) -> None:
    extra = {"page_cache_bytes": 4 * queues.ENTRY_BYTES}
    store, _ = create_stores(
        f"opendata+slatedb://{tmp_path / 'data'}", clock=Clock(),
        options=StoreOptions(max_messages=30, extra=extra),
    )  # fmt: skip
    assert isinstance(store, OpenDataMessageStore)
    async with store:
        await post(store, ["old"] * 30, ttl=60_000)
        evict_all(store)
        store._db.clock.advance(61_000)
        await post(store, ["new"])
        assert texts(await listed(store)) == ["new"]


async def test_what_a_damaged_page_held_is_not_counted_when_the_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three messages were claimed less than none."""
    async with make(tmp_path, Clock()) as store:
        await post(store, ["text"] * 9)
        await claim(store, 9)
        evict_all(store)
        there = store._db.queues.make(QUEUE)
        lost, get = keys.queue_key(RecordType.ACTIVE, there.raw, 1), store._db.engine.get

        async def damaged(wanted: Sequence[bytes]) -> dict[bytes, Stored]:
            found = await get(wanted)
            return found | {key: Damage(key, "planted") for key in wanted if key == lost}

        monkeypatch.setattr(store._db.engine, "get", damaged)
        assert len(await listed(store)) == 6
        store._db.clock.advance(60_000)
        stats = await store.stats(QUEUE)
        assert (stats.ready, stats.delayed, stats.claimed) == (6, 0, 0)
        assert len((await claim(store, 9))[1]) == 6


async def test_a_sweep_ends_the_leases_of_a_claim_that_memory_can_t_hold(
    store: OpenDataMessageStore,
) -> None:
    """Loading its pages on disk evicted those in memory, and the other way round, for ever."""
    await post(store, ["text"] * 12)
    await claim(store, 12)
    evict_all(store)
    await listed(store)  # some of its pages are in memory then
    store._db.clock.advance(60_000)
    assert (await asyncio.wait_for(store.sweep(1_000), 30)).lapsed == 12
    assert (await store.stats(QUEUE)).ready == 12


async def test_what_is_parked_on_disk_does_not_stop_an_exposure(
    store: OpenDataMessageStore,
) -> None:
    """A page with ended and running parkings was taken for the next one with delayed messages."""
    await post(store, ["a", "b", "c"])
    claim_id, held = await claim(store, 3)
    waits = (1_000, 50_000, 60_000)
    settlements = [
        Settlement(message.id, Act.RELEASE, delay_ms=wait)
        for message, wait in zip(held, waits, strict=True)
    ]
    await store.settle(QUEUE, claim_id or "", settlements)
    for number in range(9):
        await post(store, [str(number)], delay=100_000 + number)
    evict_all(store)
    store._db.clock.advance(2_000)
    assert await store.release_delayed(QUEUE, 100) == 9
    stats = await store.stats(QUEUE)
    assert (stats.ready, stats.delayed) == (10, 2)


async def test_a_message_has_an_id_of_its_own_beside_its_copy_on_disk(
    store: OpenDataMessageStore,
) -> None:
    """Of two messages with one id, only the one that came last could be acknowledged."""
    copied = NewMessage(b'"m"', HOUR, copies=(Copy(OTHER, HOUR, 0, 100),))
    (posted,) = await store.post(QUEUE, [copied], client_id="p", version=None)
    others = [NewMessage(b'"other"', HOUR)] * 12
    await store.post(OTHER, others, client_id="p", version=None)
    evict_all(store)
    assert await store.move(QUEUE, [posted.id], Move(OTHER, HOUR)) == [Outcome.DONE]
    claimed = await store.claim(
        OTHER, ClaimRequest(20, None, DelayMode.HONOUR, 60_000, 0, "worker")
    )
    ids = [message.id for message in claimed.messages]
    assert len(set(ids)) == 14
    assert not await store.delete(OTHER, ids, claim_ids=[claimed.claim_id or ""])
    assert (await store.stats(OTHER)).total == 0


async def test_the_id_of_a_moved_message_on_disk_is_a_marker(store: OpenDataMessageStore) -> None:
    """It meant the place that the message had where it came from: the listing began again."""
    new = [NewMessage(json.dumps(str(number)).encode(), HOUR) for number in range(12)]
    posted = await store.post(QUEUE, new, client_id="p", version=None)
    await store.move(QUEUE, [one.id for one in posted], Move(OTHER, HOUR))
    await store.sweep(100)
    evict_all(store)
    marker = Marker(int(posted[4].id[:16], 16), posted[4].id)
    page = await store.list_messages(OTHER, ListQuery(limit=5, marker=marker))
    assert texts(list(page.messages)) == ["5", "6", "7", "8", "9"]


async def test_pages_of_waiting_and_of_ready_messages_are_joined(
    store: OpenDataMessageStore,
) -> None:
    """Both had the bound of the first ready message then, and a heap could not order them."""
    store._db.page_cache.limit = 1 << 40
    for number in range(40):
        await post(store, [str(number), "gone", "gone"])
    await claim(store, 60)
    gone = [message.id for message in await listed(store) if message.body == b'"gone"']
    await store.delete(QUEUE, gone, claim_ids=None)
    for _ in range(5):
        await store.sweep(1_000)
    there = store._db.queues.get(QUEUE)
    assert there is not None
    assert len(there.pages) < 8
    assert texts(await listed(store)) == [str(number) for number in range(40)]
    assert texts((await claim(store, 30))[1]) == [str(number) for number in range(20, 40)]


async def _release(either: MessageStore, claim_id: str) -> None:
    await either.release(QUEUE, claim_id)


async def _renew(either: MessageStore, claim_id: str) -> None:
    await either.renew(QUEUE, claim_id, ttl_ms=90_000, grace_ms=60_000)


async def _fail(either: MessageStore, claim_id: str) -> None:
    """Park the first message, and let the last one lapse soon."""
    held = (await either.get_claim(QUEUE, claim_id)).messages
    await either.settle(
        QUEUE,
        claim_id,
        [
            Settlement(held[0].id, Act.RELEASE, delay_ms=8_000, failed=True),
            Settlement(held[-1].id, Act.EXTEND, ttl_ms=60_000, grace_ms=60_000),
        ],
    )


ENDS = (_release, _renew, _fail, _fail)
ACTS = ("post",) * 3 + ("end",) * 2 + ("claim", "delete", "edit", "pop", "time", "sweep")


@pytest.mark.parametrize("seed", range(6))
async def test_any_operations_give_what_the_memory_store_gives(  # noqa: PLR0912 - all acts
    seed: int, store: OpenDataMessageStore
) -> None:
    model, _ = create_stores("memory://", clock=store._db.clock, options=StoreOptions())
    choose = random.Random(seed)
    claims: list[tuple[str, str]] = []
    for step in range(150):
        match choose.choice(
            (
                "post",
                "post",
                "post",
                "claim",
                "delete",
                "edit",
                "pop",
                "end",
                "end",
                "time",
                "sweep",
            )
        ):
            case "post":
                new = [
                    NewMessage(
                        json.dumps(f"{step}-{number}").encode(),
                        choose.choice((HOUR, HOUR, 70_000)),
                        choose.choice((0, 0, 5_000, 40_000)),
                        priority=choose.choice((100, 100, 7)),
                    )
                    for number in range(choose.randint(1, 5))
                ]
                for either in (model, store):
                    await either.post(QUEUE, new, client_id="producer", version=None)
            case "claim":
                limit = choose.randint(1, 6)
                right, ours = await claim(model, limit), await claim(store, limit)
                assert texts(ours[1]) == texts(right[1])
                if right[0] and ours[0]:
                    claims.append((right[0], ours[0]))
            case "pop":
                limit = choose.randint(1, 3)
                request = ClaimRequest(limit, None, DelayMode.HONOUR, removes=True)
                popped = [await either.claim(QUEUE, request) for either in (model, store)]
                assert texts(list(popped[1].messages)) == texts(list(popped[0].messages))
            case "edit":
                index = choose.randint(0, 30)
                for either in (model, store):
                    for message in (await listed(either))[index : index + 1]:
                        with contextlib.suppress(Conflict):
                            await either.edit(QUEUE, Edit(message.id, delay_ms=9_000))
            case "delete":
                index = choose.randint(0, 30)
                for either in (model, store):
                    ids = [message.id for message in await listed(either)][index : index + 2]
                    await either.delete(QUEUE, ids, claim_ids=None)
            case "end" if claims:
                pair = claims[choose.randrange(len(claims))]
                end = choose.choice(ENDS)
                for either, claim_id in zip((model, store), pair, strict=True):
                    with contextlib.suppress(NotFound):
                        await end(either, claim_id)
            case "time":
                store._db.clock.advance(choose.choice((1_000, 6_000, 30_000)))
            case _:
                await store.sweep(100)
        right_stats, our_stats = await model.stats(QUEUE), await store.stats(QUEUE)
        assert (our_stats.ready, our_stats.delayed, our_stats.claimed) == (
            right_stats.ready, right_stats.delayed, right_stats.claimed,
        )  # fmt: skip
    assert texts(await listed(store)) == texts(await listed(model))
