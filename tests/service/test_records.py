"""What services of records share: changes that are repeated, and lists that are read in pages."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.waiting import rounds_beside
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    LimitReached,
    NotFound,
    QueueChanged,
    RecordChanged,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.models import QueueRef, Record, StoreOptions
from zaqar_lite.service import records as module
from zaqar_lite.service.records import (
    TRIES,
    Kind,
    Most,
    all_queues,
    all_records,
    retried,
)
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "jobs")


class Counter:
    """A change that loses its first races."""

    def __init__(self, lost: int, error: ZaqarLiteError) -> None:
        self._lost = lost
        self._error = error
        self.calls = 0

    @retried("The queue {1.name!r}")
    async def change(self, queue: QueueRef, *, by: int) -> int:
        self.calls += 1
        if self.calls <= self._lost:
            raise self._error
        return by


@pytest.mark.parametrize(
    ("lost", "error", "calls"),
    [
        (TRIES - 1, RecordChanged("now"), TRIES),
        (TRIES - 1, QueueChanged("now"), TRIES),
        (TRIES, RecordChanged("now"), TRIES),
        (1, NotFound("gone"), 1),
    ],
    ids=["a record's", "a queue's", "every one", "another error"],
)
async def test_a_change_that_loses_races_begins_anew(
    monkeypatch: pytest.MonkeyPatch, lost: int, error: ZaqarLiteError, calls: int
) -> None:
    """One that loses every race says what is changed too often."""
    monkeypatch.setattr(module, "_LONGEST_WAIT", 0.0)
    counter = Counter(lost, error)
    if isinstance(error, NotFound):
        with pytest.raises(NotFound):
            await counter.change(QUEUE, by=3)
    elif lost == TRIES:
        with pytest.raises(Unavailable, match=r"^The queue 'jobs' is being changed too often"):
            await counter.change(QUEUE, by=3)
    else:
        assert await counter.change(QUEUE, by=3) == 3
    assert counter.calls == calls


class Distant:
    """A store whose answers take a moment, in which others change what was read."""

    def __init__(self, store: ManagementStore) -> None:
        self._store = store

    async def get_record(self, *args: Any) -> Record | None:
        found = await self._store.get_record(*args)
        await asyncio.sleep(0.001)
        return found

    async def put_record(self, *args: Any, **more: Any) -> Record:
        await asyncio.sleep(0.001)
        return await self._store.put_record(*args, **more)


async def test_sixty_who_change_a_record_at_once_all_come_to_their_end() -> None:
    _, store = create_stores("memory://", clock=Clock(), options=StoreOptions())
    kind = Kind(cast(ManagementStore, Distant(store)), "sum", "Sum", int)
    await kind.put("p", "s", 0, 0)
    await asyncio.gather(*(kind.change("p", "s", lambda old: old + 1) for _ in range(60)))
    assert await kind.get("p", "s") == 60


def things(management: ManagementStore, most: int | None = None) -> Kind[str]:
    """Records whose value is their name; with a bound, if one is given."""
    return Kind(
        management,
        "thing",
        "Thing",
        encode=str.encode,
        reads=lambda record: record.name,
        most=None if most is None else Most(most, LimitReached, "things"),
    )


@pytest.fixture
async def management() -> AsyncIterator[ManagementStore]:
    _, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
    for project in ("a", "b"):
        for number in range(5):
            await management.put_record("thing", project, str(number), b"{}", expected=0)
    await management.put_record("other", "a", "0", b"{}", expected=0)
    async with management:
        yield management


@pytest.mark.parametrize("size", [1, 2, 5, 6])
async def test_all_records_are_read_whatever_the_page(
    management: ManagementStore, size: int
) -> None:
    found = all_records(management, "thing", "a", page_size=size)
    assert [one.name async for one in found] == ["0", "1", "2", "3", "4"]
    everywhere = all_records(management, "thing", page_size=size)
    assert [one.project async for one in everywhere] == ["a"] * 5 + ["b"] * 5


@pytest.mark.parametrize("size", [1, 2, 3, 4])
async def test_no_more_records_are_read_than_were_asked_for(
    management: ManagementStore, size: int
) -> None:
    some = all_records(management, "thing", "a", after=("a", "0"), most=3, page_size=size)
    assert [one.name async for one in some] == ["1", "2", "3"]


@pytest.mark.parametrize(("most", "count"), [(0, 0), (4, 4), (5, 5), (6, 5)])
async def test_records_are_counted_up_to_a_number(
    management: ManagementStore, most: int, count: int
) -> None:
    assert await things(management).count("a", most) == count


async def test_records_are_read_in_steps(management: ManagementStore) -> None:
    async def read() -> int:
        return len([None async for _ in all_records(management, "thing", page_size=1)])

    rounds, steps = await rounds_beside(read())
    assert rounds >= steps >= 5


@pytest.mark.parametrize("page_size", [1, 2, 4, 5])
async def test_each_queue_of_a_project_is_read_once(
    management: ManagementStore, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    monkeypatch.setattr(module, "_READ_AT_ONCE", page_size)
    for name in "abcd":
        await management.create_queue(QueueRef("p", name), {}, max_queues=4)
    found = all_queues(management, "p")
    assert [record.queue.name async for record in found] == list("abcd")


@pytest.mark.parametrize("limit", [1, 2, 7, 300, None])
async def test_no_page_is_empty_or_short_before_the_end(limit: int | None) -> None:
    _, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
    for number in range(300):
        await management.put_record("thing", "p", f"a/{number:03}", b"{}", expected=0)
    await management.put_record("thing", "p", "b/0", b"{}", expected=0)
    asked = list[str]()

    def keep(name: str) -> bool:
        asked.append(name)
        return name > "a/050"

    pages: list[list[str]] = []
    after = ""
    while page := await things(management).page("p", after, limit, prefix="a/", keep=keep):
        pages.append(page)
        after = page[-1].removeprefix("a/")
    shown = [name for page in pages for name in page]
    assert shown == [f"a/{number:03}" for number in range(51, 300)]
    if limit is not None:
        assert all(len(page) == limit for page in pages[:-1])
    assert len(asked) < 300 + 100 * len(pages)


async def test_a_record_is_made_replaced_changed_and_deleted() -> None:
    management = create_stores("memory://", clock=Clock(), options=StoreOptions())[1]
    kind = things(management, most=1)

    async def build(old: str | None) -> str:
        return "new" if old is None else "next"

    assert await kind.write("p", "a", build) == ("new", True)
    assert await kind.write("p", "a", build) == ("next", False)
    with pytest.raises(LimitReached, match="There may be 1 things"):
        await kind.write("p", "b", build)
    with pytest.raises(RecordChanged):  # it is there: its bound is no reason
        await kind.make("p", "a", "again")
    with pytest.raises(NotFound, match="Thing b does not exist"):
        await kind.change("p", "b", build)
    assert await kind.change("p", "a", build) == "next"

    async def same(old: str) -> str:
        return old

    _, version = await kind.read("p", "a")
    await kind.change("p", "a", same)  # which writes nothing
    assert await kind.read("p", "a") == ("a", version)
    assert await kind.delete("p", "a")
    assert await kind.find("p", "a") is None
