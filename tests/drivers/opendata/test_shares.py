"""What one project adds to a batch is bounded, and a large post goes in several."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.drivers.opendata.store import HOUR, OTHER, QUEUE, Store, listed
from zaqar_lite.domain.errors import KeyReused, Unavailable
from zaqar_lite.domain.models import DeadLetter, ListQuery, QueueRef
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage, Posted
from zaqar_lite.storage.opendata.checkpoint import GARBAGE_STEP
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.entries import PAGE_SIZE, Page
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.staging import PART
from zaqar_lite.storage.sql.shares import ALONE, FEW, ROOM

pytestmark = pytest.mark.anyio
MANY = 5_000
THEIRS = QueueRef("another", "queue")
GARBAGE = keys.prefix(RecordType.GARBAGE)


class Batches:
    """What the engine is given: payloads of each batch, and what is called before one."""

    def __init__(self, store: Store) -> None:
        self.payloads: list[int] = []
        self.rows: list[int] = []
        self.before: Callable[[Batch], None] = lambda _: None
        commit = store.db.engine.commit

        async def counted(batch: Batch) -> None:
            self.before(batch)
            self.payloads.append(payloads(batch))
            self.rows.append(len(batch.puts) + len(batch.deletes))
            await commit(batch)

        store.db.engine.commit = counted  # type: ignore[method-assign]


def payloads(batch: Batch) -> int:
    return sum(key.startswith(PAYLOAD_PREFIX) for key in batch.puts)


def numbered(count: int, *, start: int = 0) -> list[NewMessage]:
    return [NewMessage(b'"%d"' % number, HOUR) for number in range(start, start + count)]


def keyed(count: int) -> list[NewMessage]:
    return [
        NewMessage(b"1", HOUR, idempotency_key=IdempotencyKey(f"key-{number}", b"d" * 16))
        for number in range(count)
    ]


async def post(
    store: Store,
    new: Sequence[NewMessage],
    *,
    to: QueueRef = QUEUE,
    batch_key: IdempotencyKey | None = None,
) -> Sequence[Posted]:
    return await store.messages.post(
        to, new, client_id="producer", batch_key=batch_key, version=None
    )


async def shared(store: Store) -> Batches:
    """Let two projects come, so that the batches have less room; watch them from then on."""
    for ref in (OTHER, THEIRS):
        await post(store, numbered(1), to=ref)
    for ref in (OTHER, THEIRS):
        await store.messages.drop(ref)
    assert await left_behind(store) == 0
    return Batches(store)


async def until(happened: Callable[[], object]) -> None:
    for _ in range(1_000_000):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not happen")


async def left_behind(store: Store) -> int:
    """Sweep, and count the payloads that are stored then."""
    await store.sweep()
    assert not await store.records(RecordType.GARBAGE)
    return len(await store.records(RecordType.PAYLOAD))


async def test_a_post_of_one_part_goes_in_one_batch(store: Store) -> None:
    batches = await shared(store)
    await post(store, numbered(PART))
    assert batches.payloads == [PART]


async def test_a_larger_post_goes_in_parts(store: Store) -> None:
    batches = await shared(store)
    posted = await post(store, numbered(MANY))
    assert batches.payloads == [PART] * (MANY // PART)
    assert max(batches.rows[:-1]) <= 2 * PART + 10
    assert batches.rows[-1] <= 2 * PART + MANY / PAGE_SIZE + MANY / GARBAGE_STEP + 10
    ids = [one.id for one in posted]
    assert len(ids) == MANY
    page = await store.messages.list_messages(QUEUE, ListQuery(limit=1_000))
    assert [message.id for message in page.messages] == ids[:1_000]
    assert await left_behind(store) == MANY
    await store.restart()
    assert await listed(store) == [str(number) for number in range(MANY)]


@pytest.mark.parametrize("is_disturbed", [False, True])
async def test_a_larger_post_with_copies_goes_in_parts_where_it_can(
    store: Store, *, is_disturbed: bool
) -> None:
    """A message that came to the copies' queue meanwhile has a higher id than they have."""
    batches = await shared(store)
    copied = [replace(one, copies=(Copy(OTHER, HOUR, 0, 100),)) for one in numbered(4 * PART)]
    posting = asyncio.create_task(post(store, copied))
    await until(lambda: batches.payloads)
    if is_disturbed:
        await post(store, [NewMessage(b'"between"', HOUR)], to=OTHER)
    assert not posting.done()
    await posting
    parts = [count for count in batches.payloads if count >= PART]
    assert (4 * PART in parts) == is_disturbed
    expected = [str(number) for number in range(4 * PART)]
    assert await listed(store, OTHER) == ["between"][: int(is_disturbed)] + expected
    assert await listed(store) == expected
    assert await left_behind(store) == len(expected) + int(is_disturbed)


async def test_a_project_that_is_alone_waits_for_fewer_batches(store: Store) -> None:
    batches = Batches(store)
    await post(store, numbered(MANY))
    assert len(batches.payloads) == 3
    assert max(batches.payloads) == ALONE
    assert len(await listed(store)) == MANY


async def test_others_are_answered_between_the_parts(store: Store) -> None:
    batches = await shared(store)
    posting = asyncio.create_task(post(store, numbered(MANY)))
    await until(lambda: batches.payloads)
    for number in range(3):
        await post(store, numbered(1, start=number), to=THEIRS)
    assert not posting.done()
    assert await listed(store) == []
    await posting
    assert len(await listed(store)) == MANY


async def test_who_comes_while_a_part_is_written_waits_for_no_other_part(store: Store) -> None:
    """Its batch is the next one, and has nothing of the large post."""
    batches = await shared(store)
    posts: list[asyncio.Task[Sequence[Posted]]] = []

    def come(batch: Batch) -> None:
        if payloads(batch) >= PART:
            posts.append(asyncio.create_task(post(store, numbered(1), to=THEIRS)))

    batches.before = come
    await post(store, numbered(MANY))
    batches.before = lambda _: None
    await asyncio.gather(*posts)
    assert len(posts) == MANY // PART
    for first, second in pairwise(batches.payloads):
        assert first + second <= PART + 2
    assert len(await listed(store)) == MANY
    assert len(await listed(store, THEIRS)) == len(posts)


async def test_who_reads_a_queue_waits_for_no_change_of_another_queue(store: Store) -> None:
    management, engine = store.management, store.db.engine
    await management.create_queue(THEIRS, {}, max_queues=10)
    commit, written = engine.commit, asyncio.Event()

    async def held_up(batch: Batch) -> None:
        await written.wait()
        await commit(batch)

    engine.commit = held_up  # type: ignore[method-assign]
    making = asyncio.create_task(management.create_queue(QUEUE, {}, max_queues=10))
    await asyncio.sleep(0)
    reading = asyncio.create_task(management.get_queue(QUEUE))
    for read in (
        management.get_queue(THEIRS),
        management.list_queues(THEIRS.project, limit=1),
        management.create_queue(THEIRS, {}, max_queues=10),
    ):
        assert await asyncio.wait_for(read, 10)
    assert not making.done()
    assert not reading.done()  # that queue might not be there after a crash
    written.set()
    record, is_new = await making
    assert is_new
    assert await reading == record


async def test_posts_to_the_same_queue_come_behind_the_parts(store: Store) -> None:
    batches = await shared(store)
    posting = asyncio.create_task(post(store, numbered(MANY)))
    await until(lambda: batches.payloads)
    later = asyncio.create_task(post(store, numbered(1, start=MANY)))
    larger = asyncio.create_task(post(store, numbered(PART + 1, start=MANY + 1)))
    await asyncio.gather(posting, later, larger)
    texts = await listed(store)
    assert texts[:MANY] == [str(number) for number in range(MANY)]
    assert sorted(texts[MANY:], key=int) == [str(MANY + number) for number in range(PART + 2)]
    assert max(batches.payloads) <= PART + 1


async def test_what_moves_in_between_the_parts_is_not_overtaken(store: Store) -> None:
    """A reader that saw the dead letter must find all that becomes visible after it."""
    batches = await shared(store)
    await store.post("letter", to=OTHER)
    letters = DeadLetter(QUEUE, 1)
    await store.claim(queue=OTHER)
    store.clock.advance(HOUR // 2)
    batches.payloads.clear()
    posting = asyncio.create_task(post(store, numbered(3 * PART)))
    await until(lambda: batches.payloads)
    assert not (await store.claim(queue=OTHER, letters=letters)).messages
    assert not posting.done()
    await posting
    assert await listed(store) == ["letter", *(str(number) for number in range(3 * PART))]
    assert await left_behind(store) == 3 * PART + 1


async def test_a_failed_part_leaves_nothing(store: Store) -> None:
    batches = await shared(store)

    def fail(_: Batch) -> None:
        if len(batches.payloads) == 3:
            batches.payloads.append(0)
            raise Unavailable("The disk is full.")

    batches.before = fail
    with pytest.raises(Unavailable):
        await post(store, numbered(MANY))
    await asyncio.sleep(1.1)  # the store refuses writes for a second
    assert await listed(store) == []
    assert await left_behind(store) == 0
    await post(store, numbered(MANY))
    assert await left_behind(store) == MANY


async def test_a_failed_last_batch_leaves_nothing(store: Store) -> None:
    batches = await shared(store)

    def fail(batch: Batch) -> None:
        if any(key.startswith(GARBAGE) for key in batch.deletes):
            batches.before = lambda _: None
            raise Unavailable("The disk is full.")

    batches.before = fail
    with pytest.raises(Unavailable):
        await post(store, numbered(MANY))
    await asyncio.sleep(1.1)
    assert await listed(store) == []
    assert await left_behind(store) == 0


async def test_a_server_that_ends_between_the_parts_leaves_nothing(store: Store) -> None:
    batches = await shared(store)
    posting = asyncio.create_task(post(store, numbered(MANY)))
    await until(lambda: len(batches.payloads) == 3)
    posting.cancel()
    with suppress(asyncio.CancelledError):
        await posting
    await store.restart()
    assert await listed(store) == []
    assert await left_behind(store) == 0


async def test_keys_of_a_post_in_parts_are_known(store: Store) -> None:
    new = keyed(2 * PART)
    first, second = await asyncio.gather(post(store, new), post(store, new))
    assert [one.id for one in first] == [one.id for one in second]
    assert [one.duplicate for one in first] == [False] * len(new)
    assert [one.duplicate for one in second] == [True] * len(new)
    assert await left_behind(store) == len(new)


async def test_a_key_that_is_twice_in_a_post_is_stored_once(store: Store) -> None:
    posted = await post(store, [*keyed(PART), *keyed(1), *numbered(PART)])
    assert [one.duplicate for one in posted].count(True) == 1
    assert posted[PART].id == posted[0].id
    other = NewMessage(b"2", HOUR, idempotency_key=IdempotencyKey("key-1", b"e" * 16))
    with pytest.raises(KeyReused):
        await post(store, [*numbered(PART), other])
    assert await left_behind(store) == 2 * PART


async def test_a_post_in_parts_is_known_by_its_key(store: Store) -> None:
    key = IdempotencyKey("batch", b"d" * 16)
    first = await post(store, numbered(MANY), batch_key=key)
    again = await post(store, numbered(MANY), batch_key=key)
    assert [one.id for one in first] == [one.id for one in again]
    assert all(one.duplicate for one in again)
    assert len(await listed(store)) == MANY


async def test_a_batch_has_room_for_so_much_of_a_project(store: Store) -> None:
    """At the bound all goes in one batch; one post more goes in the next."""
    batches = await shared(store)
    half = ROOM // 2
    few, posts = post(store, numbered(FEW)), [post(store, numbered(half)) for _ in range(2)]
    await asyncio.gather(few, *posts)
    assert batches.payloads == [ROOM + FEW]
    batches.payloads.clear()
    few, posts = post(store, numbered(FEW)), [post(store, numbered(half)) for _ in range(3)]
    await asyncio.gather(few, *posts)
    assert batches.payloads == [ROOM + FEW, half]


async def test_a_few_of_another_project_join_a_full_batch(store: Store) -> None:
    batches = await shared(store)
    crowd = [asyncio.create_task(post(store, numbered(FEW))) for _ in range(100)]
    await asyncio.sleep(0)
    await post(store, numbered(FEW), to=THEIRS)
    assert batches.payloads[0] <= ROOM + 3 * FEW
    assert len(batches.payloads) <= 2
    await asyncio.gather(*crowd)
    assert max(batches.payloads) <= ROOM + 3 * FEW
    assert len(await listed(store)) == 100 * FEW


async def test_projects_that_wait_have_their_turns_by_turns(store: Store) -> None:
    """However many posts one of them has waiting."""
    await shared(store)
    crowd = [asyncio.create_task(post(store, numbered(FEW))) for _ in range(100)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(post(store, numbered(2 * FEW), to=THEIRS)) for _ in range(4)]
    await asyncio.gather(*others)
    assert sum(not task.done() for task in crowd) > 60
    await asyncio.gather(*crowd)


@pytest.mark.parametrize(
    "message",
    [
        NewMessage(b'"' + b"x" * 262_000 + b'"', HOUR),
        NewMessage(b"1", HOUR, headers={f"{n:0255}": "x" * 8_000 for n in range(32)}),
    ],
    ids=["body", "headers"],
)
async def test_large_messages_count_as_many(store: Store, message: NewMessage) -> None:
    batches = await shared(store)
    await asyncio.gather(*[post(store, [message]) for _ in range(10)])
    assert len(batches.payloads) >= 5
    assert max(batches.payloads) <= 2


async def test_claims_have_their_share(store: Store) -> None:
    batches = await shared(store)
    await post(store, numbered(MANY))
    batches.rows.clear()
    claims = await asyncio.gather(*[store.claim(20) for _ in range(100)])
    assert sum(len(claim.messages) for claim in claims) == 2_000
    assert len(batches.rows) >= 5
    assert max(batches.rows) <= 2 * (ROOM + FEW)


async def test_who_waits_for_a_turn_is_told_of_a_failed_batch(store: Store) -> None:
    batches = Batches(store)

    def fail(_: Batch) -> None:
        batches.before = lambda _: None
        raise Unavailable("The disk is full.")

    batches.before = fail
    posts = [post(store, numbered(FEW)) for _ in range(50)]
    answers = await asyncio.gather(*posts, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    await asyncio.sleep(1.1)
    await post(store, numbered(MANY))
    assert len(await listed(store)) == MANY


async def test_who_goes_away_while_waiting_holds_up_nobody(store: Store) -> None:
    await shared(store)
    crowd = [asyncio.create_task(post(store, numbered(FEW))) for _ in range(60)]
    await asyncio.sleep(0)
    for task in crowd[20:]:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert len(await listed(store)) == 20 * FEW
    await post(store, numbered(5 * FEW))


async def test_a_page_of_copies_is_appended_to(store: Store) -> None:
    """A batch encodes the copies that are new, not all that each of a hundred queues holds."""
    copies = tuple(Copy(QueueRef("project", f"copies-{n}"), HOUR, 0, 100) for n in range(3))
    for count in range(10, 60, 10):
        await post(store, [NewMessage(b"1", HOUR, copies=copies)] * 10)
        for copy in copies:
            page = page_of(store, copy.queue)
            assert page.encoded_count == len(page.encoded_extras) == count
    (message,) = (await store.claim(1, queue=copies[0].queue)).messages
    assert not page_of(store, copies[0].queue).encoded_extras
    await store.messages.delete(copies[1].queue, [message.id], claim_ids=None)
    await store.restart()
    assert [len(await listed(store, copy.queue)) for copy in copies] == [50, 49, 50]


def page_of(store: Store, ref: QueueRef) -> Page:
    queue = store.db.queues.get(ref)
    assert queue is not None
    (page,) = queue.pages
    return page
