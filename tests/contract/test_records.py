"""Records: whatever is no queue and no message, written at an expected version."""

import asyncio
import json
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import HOUR, MINUTE, some
from zaqar_lite.domain.errors import LimitReached, RecordChanged
from zaqar_lite.domain.models import MAX_RECORD, Capability, QueueRef, Record, RecordBound

pytestmark = pytest.mark.anyio


@pytest.fixture
def kind() -> str:
    """A kind of the test's own: listings of a kind go over all projects."""
    return f"kind-{uuid4().hex[:12]}"


async def put(
    stores: Stores,
    kind: str,
    project: str,
    name: str,
    value: object = "value",
    *,
    expected: int | None = None,
    ttl: int | None = None,
) -> Record:
    return await stores.management.put_record(
        kind, project, name, json.dumps(value).encode(), expected=expected, ttl_ms=ttl
    )


async def get(stores: Stores, kind: str, project: str, name: str) -> Record | None:
    return await stores.management.get_record(kind, project, name)


async def listed(
    stores: Stores, kind: str, project: str | None = None, *, limit: int = 100
) -> list[Record]:
    """All records of the listing, page by page."""
    found: list[Record] = []
    while True:
        after = (found[-1].project, found[-1].name) if found else None
        page = await stores.management.list_records(kind, project, after=after, limit=limit)
        assert len(page) <= limit
        found += page
        if len(page) < limit:
            return found


def keys(records: Sequence[Record]) -> list[tuple[str, str]]:
    return [(record.project, record.name) for record in records]


# Writing and reading.


async def test_a_record_is_read_as_it_was_written(stores: Stores, kind: str) -> None:
    largest = json.dumps("x" * (MAX_RECORD - 2)).encode()
    assert len(largest) == MAX_RECORD
    for value in (b'{ "b":1.0, "a": [ null, "\\u00e9", "\xc3\xa9" ], "a": "twice" }', largest):
        assert await get(stores, kind, "p", "n") is None
        assert await listed(stores, kind) == await listed(stores, kind, "p") == []
        assert await stores.management.delete_record(kind, "p", "n") is False
        written = await stores.management.put_record(kind, "p", "n", value, expected=0)
        assert written == Record(kind, "p", "n", value, written.version)
        assert written.version > 0
        assert await get(stores, kind, "p", "n") == written
        assert await listed(stores, kind) == [written]
        assert await stores.management.delete_record(kind, "p", "n") is True


async def test_a_record_is_replaced_at_its_version_and_at_no_other(
    stores: Stores, kind: str
) -> None:
    first = await put(stores, kind, "p", "n", 1, expected=0)
    second = await put(stores, kind, "p", "n", 2, expected=first.version)
    third = await put(stores, kind, "p", "n", 3)  # who expects nothing writes whatever is there
    assert first.version < second.version < third.version
    for stale in (0, first.version, third.version + 1, third.version - 1):
        with pytest.raises(RecordChanged):
            await put(stores, kind, "p", "n", 4, expected=stale)
    assert await get(stores, kind, "p", "n") == third
    assert await listed(stores, kind) == [third]
    await stores.management.delete_record(kind, "p", "n")
    for stale in (third.version, 1):
        with pytest.raises(RecordChanged):
            await put(stores, kind, "p", "n", 5, expected=stale)
    assert await get(stores, kind, "p", "n") is None
    assert await listed(stores, kind) == []


async def test_a_record_is_deleted_at_its_version_and_at_no_other(
    stores: Stores, kind: str
) -> None:
    old = await put(stores, kind, "p", "n", 1)
    record = await put(stores, kind, "p", "n", 2)
    other = await put(stores, kind, "p", "o")
    for stale in (old.version, record.version + 1):
        with pytest.raises(RecordChanged):
            await stores.management.delete_record(kind, "p", "n", expected=stale)
    assert await listed(stores, kind) == [record, other]
    assert await stores.management.delete_record(kind, "p", "n", expected=record.version) is True
    stores.clock.advance(-1_000)  # as that of another process, which is behind
    assert await get(stores, kind, "p", "n") is None
    assert await listed(stores, kind) == [other]
    for expected in (None, record.version):
        assert not await stores.management.delete_record(kind, "p", "n", expected=expected)
    assert await stores.management.delete_record(kind, "p", "o") is True
    assert await listed(stores, kind) == []


async def test_versions_grow_over_deletions_and_are_never_used_twice(
    stores: Stores, kind: str
) -> None:
    """So that no writer who saw an earlier one takes a new one for it."""
    versions = []
    for _ in range(3):
        for ttl in (None, MINUTE):
            record = await put(stores, kind, "p", "n", expected=0, ttl=ttl)
            versions.append(record.version)
            record = await put(stores, kind, "p", "n", expected=record.version, ttl=ttl)
            versions.append(record.version)
            if ttl is None:
                await stores.management.delete_record(kind, "p", "n")
            else:
                stores.clock.advance(2 * MINUTE)
                await sweep(stores)
    assert versions == sorted(set(versions))


# Races.


async def test_of_racing_writers_one_wins(stores: Stores, kind: str) -> None:
    peers = await stores.peers(3)
    expected = 0
    for _ in range(3):
        answers = await asyncio.gather(
            *[
                put(peers[number % 3], kind, "p", "n", number, expected=expected)
                for number in range(10)
            ],
            return_exceptions=True,
        )
        (winner,) = [answer for answer in answers if isinstance(answer, Record)]
        assert sum(isinstance(answer, RecordChanged) for answer in answers) == 9
        for peer in peers:
            assert await get(peer, kind, "p", "n") == winner
        expected = winner.version


async def test_of_racing_deletions_one_finds_the_record(stores: Stores, kind: str) -> None:
    peers = await stores.peers(3)
    record = await put(stores, kind, "p", "n")
    answers = await asyncio.gather(
        *[
            peer.management.delete_record(kind, "p", "n", expected=record.version)
            for peer in peers * 2
        ]
    )
    assert sorted(answers) == [False] * 5 + [True]


async def test_a_write_and_a_deletion_at_one_version_exclude_each_other(
    stores: Stores, kind: str
) -> None:
    for number in range(5):
        record = await put(stores, kind, "p", f"n{number}")
        first, second = await stores.peers(2)
        written, deleted = await asyncio.gather(
            put(first, kind, "p", f"n{number}", "new", expected=record.version),
            second.management.delete_record(kind, "p", f"n{number}", expected=record.version),
            return_exceptions=True,
        )
        found = await get(stores, kind, "p", f"n{number}")
        if isinstance(written, Record):
            assert isinstance(deleted, RecordChanged)
            assert found == written
        else:
            assert isinstance(written, RecordChanged)
            assert (deleted, found) == (True, None)


async def test_what_one_process_writes_another_reads(stores: Stores, kind: str) -> None:
    stores.need(Capability.SHARED)
    second = await stores.second()
    record = await put(stores, kind, "p", "n", 1)
    assert await get(second, kind, "p", "n") == record
    record = await put(second, kind, "p", "n", 2, expected=record.version)
    assert await get(stores, kind, "p", "n") == record
    assert await listed(second, kind) == [record]
    await second.management.delete_record(kind, "p", "n")
    assert await get(stores, kind, "p", "n") is None


# Time.


async def test_an_expired_record_is_gone_at_once(stores: Stores, kind: str) -> None:
    """As if it were not there, for readers and for writers."""
    later = await put(stores, kind, "p", "z", ttl=HOUR)
    old = await put(stores, kind, "p", "n", ttl=10 * MINUTE)
    assert old.expires_at is not None
    stays = await put(stores, kind, "p", "o")
    assert stays.expires_at is None
    stores.clock.advance(9 * MINUTE)
    assert await get(stores, kind, "p", "n") == old
    assert await listed(stores, kind) == [old, stays, later]
    stores.clock.advance(2 * MINUTE)
    assert await get(stores, kind, "p", "n") is None
    assert await listed(stores, kind) == [stays, later]
    for expected in (None, old.version):
        assert not await stores.management.delete_record(kind, "p", "n", expected=expected)
    with pytest.raises(RecordChanged):
        await put(stores, kind, "p", "n", 2, expected=old.version)
    new = await put(stores, kind, "p", "n", 3, expected=0, ttl=10 * MINUTE)
    assert new.version > old.version
    assert await listed(stores, kind) == [new, stays, later]
    stores.clock.advance(11 * MINUTE)
    newest = await put(stores, kind, "p", "n", 4)
    assert newest.version > new.version
    assert await get(stores, kind, "p", "n") == newest


async def test_the_ttl_counts_from_the_last_write(stores: Stores, kind: str) -> None:
    """And a write without one lets the record stay."""
    record = await put(stores, kind, "p", "n", ttl=10 * MINUTE)
    stores.clock.advance(9 * MINUTE)
    renewed = await put(stores, kind, "p", "n", ttl=10 * MINUTE, expected=record.version)
    assert 9 * MINUTE <= some(renewed.expires_at) - some(record.expires_at) < 10 * MINUTE
    stores.clock.advance(9 * MINUTE)
    await sweep(stores)
    assert await get(stores, kind, "p", "n") == renewed
    stays = await put(stores, kind, "p", "n", expected=renewed.version)
    assert stays.expires_at is None
    stores.clock.advance(HOUR)
    await sweep(stores)
    assert await get(stores, kind, "p", "n") == stays


async def sweep(stores: Stores, limit: int = 1_000) -> int:
    """Sweep until nothing is left to do; answer how many records went."""
    total = 0
    for _ in range(100):
        count = await stores.management.sweep_records(limit)
        assert 0 <= count <= limit
        if not count:
            return total
        total += count
    raise AssertionError("sweeping does not come to an end")


async def test_a_sweep_removes_what_has_expired_and_nothing_else(stores: Stores, kind: str) -> None:
    await sweep(stores)
    for number in range(12):
        await put(stores, kind, "p", f"n{number:02}", ttl=5 * MINUTE)
        await put(stores, f"{kind}-too", "p", f"n{number:02}", ttl=5 * MINUTE if number else None)
    live = await put(stores, kind, "p", "n06")
    later = await put(stores, kind, "p", "n07", ttl=HOUR)
    stores.clock.advance(6 * MINUTE)
    count = await sweep(stores, 5)
    # A shared server may hold those of other tests.
    assert count >= 21 or stores.management.expires_alone
    assert await listed(stores, kind) == [live, later]
    assert keys(await listed(stores, f"{kind}-too")) == [("p", "n00")]
    again = await put(stores, kind, "p", "n00", expected=0)
    await sweep(stores)
    assert await listed(stores, kind) == [again, live, later]


async def test_sweeps_race_with_writers(stores: Stores, kind: str) -> None:
    """A sweep must not take with it what was written anew in place of what had expired."""
    peers = await stores.peers(2)
    for number in range(10):
        await put(stores, kind, "p", f"n{number}", "old", ttl=MINUTE)
    stores.clock.advance(2 * MINUTE)
    await asyncio.gather(
        *[peer.management.sweep_records(100) for peer in peers],
        *[put(peers[n % 2], kind, "p", f"n{n}", "new", expected=0) for n in range(10)],
        *[peer.management.sweep_records(100) for peer in peers],
    )
    await sweep(stores)
    assert [record.value for record in await listed(stores, kind)] == [b'"new"'] * 10


# Listing.

NAMES = [
    *("a", "A", "b", "Z", "0", "_", "-", ".", "..", "a.b", "a-b", "ab", "a b", " "),
    *("a:b", "a/b", "/", "//", ":", "a:", ":b", "%2F", "%", "a%3Ab", "*", "?", "#", "a?b=c#d"),
    *("$a", "\\", '"', "'", "{a}", "[a]", "<a>", "a,b", "a;b", "a=b", "a&b", "+", "~", "`", "|"),
    *("é", "e\u0301", "ß", "ж", "乾酪", "\uffee", "\U0001f9c0", "\U0001f9c0\U0001f9c0"),
    *("n" * 200, "é" * 200),
]


async def test_names_may_hold_any_character(stores: Stores, kind: str) -> None:
    """In the order of code points, where a sign beyond the first plane is last."""
    records = {name: await put(stores, kind, "p", name, name, expected=0) for name in NAMES}
    assert len(records) == len(NAMES)
    for name, record in records.items():
        assert record.name == name
        assert await get(stores, kind, "p", name) == record
    assert await listed(stores, kind, "p", limit=7) == [records[name] for name in sorted(NAMES)]
    assert await listed(stores, kind, limit=100) == [records[name] for name in sorted(NAMES)]
    for name in NAMES[::3]:
        assert await stores.management.delete_record(kind, "p", name)
        del records[name]
    assert [record.name for record in await listed(stores, kind)] == sorted(records)


async def test_projects_may_hold_any_character_too(stores: Stores, kind: str) -> None:
    written = {
        (project, name): await put(stores, kind, project, name, [project, name], expected=0)
        for project in ("p", "p:", "p/", "p:a", "p\u00e9", "P", "\U0001f9c0", "\uffee")
        for name in ("a", ":a", "a:a", "\U0001f9c0", "\uffee")
    }
    for key, record in written.items():
        assert await get(stores, kind, *key) == record
    in_order = [written[key] for key in sorted(written)]
    assert await listed(stores, kind, limit=3) == in_order
    for project in {key[0] for key in written}:
        expected = [record for record in in_order if record.project == project]
        assert await listed(stores, kind, project, limit=2) == expected


async def test_kinds_and_projects_do_not_leak_into_each_other(
    stores: Stores, kind: str, project: str
) -> None:
    kinds = [kind, f"{kind}s", f"{kind}-x", kind[:-1]]
    records = [await put(stores, each, project, "n", each, expected=0) for each in kinds]
    near = [await put(stores, kind, each, "n", each) for each in (project[:-1], project + "x")]
    for each, record in zip(kinds, records, strict=True):
        assert await get(stores, each, project, "n") == record
        assert await listed(stores, each, project) == [record]
    assert await listed(stores, kinds[1]) == records[1:2]
    assert await stores.management.delete_record(kind, project, "n")
    assert [await get(stores, each, project, "n") for each in kinds] == [None, *records[1:]]
    assert await listed(stores, kind) == near
    assert await listed(stores, kind, project) == []


async def test_a_page_begins_after_the_cursor(stores: Stores, kind: str) -> None:
    for project in "pq":
        for name in "ace":
            await put(stores, kind, project, name)

    async def after(
        cursor: tuple[str, str] | None, project: str | None = None, limit: int = 100
    ) -> list[str]:
        page = await stores.management.list_records(kind, project, after=cursor, limit=limit)
        return [record.project + record.name for record in page]

    assert await after(None, limit=4) == ["pa", "pc", "pe", "qa"]
    assert await after(("p", "c")) == ["pe", "qa", "qc", "qe"]
    # The cursor need not be there (any more), nor in the project.
    assert await after(("p", "b"), limit=2) == ["pc", "pe"]
    assert await after(("pp", "x")) == ["qa", "qc", "qe"]
    assert await after(("q", "e")) == []
    assert await after(None, "q") == ["qa", "qc", "qe"]
    assert await after(("q", "a"), "q", limit=1) == ["qc"]
    assert await after(("q", "e"), "q") == []
    assert await after(("p", "c"), "p") == ["pe"]
    assert await after(("p", "a"), "q") == ["qa", "qc", "qe"]
    assert await after(("q", "a"), "p") == []


async def test_a_page_is_full_unless_the_list_ends(stores: Stores, kind: str) -> None:
    """A page shorter than the limit is the end, so what has expired may not shorten it."""
    for number in range(24):
        await put(stores, kind, "p", f"n{number:02}", ttl=None if number % 4 == 3 else MINUTE)
    stores.clock.advance(2 * MINUTE)
    page = await stores.management.list_records(kind, "p", limit=4)
    assert [record.name for record in page] == ["n03", "n07", "n11", "n15"]
    page = await stores.management.list_records(kind, after=("p", "n15"), limit=4)
    assert [record.name for record in page] == ["n19", "n23"]


async def test_records_and_queues_do_not_meet(stores: Stores, kind: str, project: str) -> None:
    """Not even under the same names, and a queue that is dropped leaves records alone."""
    record = await put(stores, kind, project, "same", 1)
    queue, created = await stores.management.create_queue(
        QueueRef(project, "same"), {"a": 1}, max_queues=1
    )
    assert created
    assert [each.queue.name for each in await stores.management.list_queues(project, limit=9)] == [
        "same"
    ]
    assert await stores.management.count_queues(project) == 1
    await stores.messages.purge(queue.queue, forget=True)
    assert await get(stores, kind, project, "same") == record


# Bounds.


FULL = LimitReached("full")


async def made(stores: Stores, kind: str, project: str, name: str, *bounds: RecordBound) -> bool:
    """Make a record within bounds; False where there are as many as they allow."""
    try:
        await stores.management.put_record(kind, project, name, b"1", expected=0, bounds=bounds)
    except LimitReached:
        return False
    return True


@pytest.mark.parametrize(
    ("bound", "within", "beyond"),
    [
        pytest.param(RecordBound(2, FULL), ("p", "c"), ("q", "c"), id="of a project"),
        pytest.param(RecordBound(2, FULL, "a/"), ("p", "a/3"), ("q", "a/1"), id="of a prefix"),
        pytest.param(RecordBound(2, FULL, of_server=True), ("q", "c"), None, id="of the server"),
    ],
)
async def test_a_bound_counts_what_it_names(
    stores: Stores,
    kind: str,
    bound: RecordBound,
    within: tuple[str, str],
    beyond: tuple[str, str] | None,
) -> None:
    await put(stores, kind, "p", "a/1", ttl=MINUTE)
    last = await put(stores, kind, "p", "a/2")
    assert not await made(stores, kind, *within, bound)
    assert await get(stores, kind, *within) is None
    if beyond is not None:
        assert await made(stores, kind, *beyond, bound)
    await stores.management.put_record(  # it makes none: a bound may be lower by now
        kind, "p", "a/2", b"2", expected=last.version, bounds=[bound._replace(most=1)]
    )
    stores.clock.advance(2 * MINUTE)
    assert await made(stores, kind, *within, bound), "what has expired is not counted"


async def test_a_record_that_is_there_is_told_before_a_bound(stores: Stores, kind: str) -> None:
    await put(stores, kind, "p", "a")
    with pytest.raises(RecordChanged):
        await made(stores, kind, "p", "a", RecordBound(1, FULL))


async def test_racing_makers_do_not_pass_a_bound(stores: Stores, kind: str) -> None:
    peers = await stores.peers(3)
    ours, of_a = RecordBound(5, FULL), RecordBound(4, FULL, "a/")
    done = await asyncio.gather(
        *[made(peers[n % 3], kind, "p", f"a/{n}", ours, of_a) for n in range(0, 12, 2)],
        *[made(peers[n % 3], kind, "p", f"b/{n}", ours) for n in range(1, 12, 2)],
    )
    assert sum(done) == len(await listed(stores, kind)) == 5
    assert sum(done[:6]) <= 4
