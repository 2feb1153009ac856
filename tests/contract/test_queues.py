"""Queue records: created once, changed at a version, listed by name."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.contract.stores import Stores
from zaqar_lite.domain.errors import LimitReached, QueueChanged
from zaqar_lite.domain.models import Capability, QueueRecord, QueueRef

pytestmark = pytest.mark.anyio

METADATA: dict[str, Any] = {
    "_default_message_ttl": 300,
    "a.b": 1,
    "$set": {"$inc": [1, 2.5, None, True, {"x.y": {}}]},
    "": "",
    "é\U0001f600": "ü\n\0",
    "big": 2**62,
    "negative": -(2**63),
    "nested": {"list": [[], {}, ""]},
    "_id": "mine",
}


@pytest.fixture
def name() -> str:
    return f"queue-{uuid4().hex[:12]}"


async def create(
    stores: Stores, project: str, name: str, metadata: dict[str, Any] | None = None
) -> QueueRecord:
    record, created = await stores.management.create_queue(
        QueueRef(project, name), metadata or {}, max_queues=1_000
    )
    assert created
    return record


async def names(stores: Stores, project: str, **filters: Any) -> list[str]:
    records = await stores.management.list_queues(project, limit=100, **filters)
    return [record.queue.name for record in records]


async def test_metadata_are_kept_as_they_were_given(
    stores: Stores, project: str, name: str
) -> None:
    record = await create(stores, project, name, METADATA)
    assert dict(record.metadata) == METADATA
    assert record.version > 0
    assert not record.exposing
    assert await stores.management.get_queue(QueueRef(project, name)) == record
    again = await stores.management.create_queue(QueueRef(project, name), {"a": 2}, max_queues=9)
    assert again == (record, False)
    assert await stores.management.get_queue(QueueRef(project, name)) == record


async def test_of_racing_creators_one_is_told_so(stores: Stores, project: str, name: str) -> None:
    peers = await stores.peers(3)
    answers = await asyncio.gather(
        *[
            peer.management.create_queue(QueueRef(project, name), {"n": n}, max_queues=1_000)
            for n, peer in enumerate(peers * 2)
        ]
    )
    assert [created for _, created in answers].count(True) == 1
    assert len({(record.version, record.metadata["n"]) for record, _ in answers}) == 1
    assert await stores.management.count_queues(project) == 1


async def test_of_racing_creators_one_makes_a_queue_that_is_being_deleted(
    stores: Stores, project: str, name: str
) -> None:
    ref = QueueRef(project, name)
    old = await create(stores, project, name)
    deleting = asyncio.create_task(stores.management.delete_queue(ref, version=old.version))
    answers = await asyncio.gather(
        *(stores.management.create_queue(ref, {}, max_queues=10) for _ in range(3))
    )
    await deleting
    versions = {record.version for record, _ in answers} - {old.version}
    assert sum(created for _, created in answers) == len(versions) <= 1


async def test_two_projects_have_their_own_queues(stores: Stores, project: str, name: str) -> None:
    await create(stores, project, name, {"mine": True})
    for theirs in (project + "x", project[:-1], project + "/", f"{project}.{name}"):
        assert await stores.management.get_queue(QueueRef(theirs, name)) is None
        assert await names(stores, theirs) == []
        assert await stores.management.count_queues(theirs) == 0
    await create(stores, project + ":", name, {})
    assert await names(stores, project) == [name]
    assert await stores.management.count_queues(project) == 1


async def test_a_record_is_changed_and_deleted_at_its_version_and_at_no_other(
    stores: Stores, project: str, name: str
) -> None:
    management = stores.management
    record = await create(stores, project, name, {"a": 1, "b": 2})
    updated = await management.update_queue(
        QueueRecord(record.queue, {"b": 3}, record.version, exposing=True)
    )
    assert dict(updated.metadata) == {"b": 3}
    assert updated.exposing
    assert updated.version > record.version
    with pytest.raises(QueueChanged):
        await management.update_queue(QueueRecord(record.queue, {"a": 3}, record.version))
    with pytest.raises(QueueChanged):
        await management.delete_queue(record.queue, version=record.version)
    assert await management.get_queue(record.queue) == updated
    for _ in range(2):  # what is gone already is no error
        await management.delete_queue(record.queue, version=updated.version)
        assert await management.get_queue(record.queue) is None
    with pytest.raises(QueueChanged):
        await management.update_queue(updated)
    assert await management.get_queue(record.queue) is None


async def test_of_racing_updates_one_wins(stores: Stores, project: str, name: str) -> None:
    record = await create(stores, project, name)
    peers = await stores.peers(3)
    answers = await asyncio.gather(
        *[
            peer.management.update_queue(QueueRecord(record.queue, {"n": n}, record.version))
            for n, peer in enumerate(peers * 2)
        ],
        return_exceptions=True,
    )
    (winner,) = [answer for answer in answers if isinstance(answer, QueueRecord)]
    assert sum(isinstance(answer, QueueChanged) for answer in answers) == 5
    assert await stores.management.get_queue(record.queue) == winner


async def test_a_queue_made_again_has_another_and_higher_version(
    stores: Stores, project: str, name: str
) -> None:
    versions = []
    for _ in range(3):
        record = await create(stores, project, name)
        versions.append(record.version)
        record = await stores.management.update_queue(record)
        versions.append(record.version)
        await stores.management.delete_queue(record.queue, version=record.version)
    assert versions == sorted(set(versions))


async def test_queues_are_listed_by_name_in_code_point_order(stores: Stores, project: str) -> None:
    expected = sorted(["b", "a", "B", "A", "_", "-", "a.b", "a-b", "ab", "a0", "Z9", ".", "0"])
    for each in reversed(expected):
        await create(stores, project, each, {"name": each})
    records = await stores.management.list_queues(project, limit=100)
    assert [record.queue.name for record in records] == expected
    assert [record.metadata["name"] for record in records] == expected
    assert {record.queue.project for record in records} == {project}
    assert await stores.management.count_queues(project) == len(expected)


async def test_pages_follow_the_marker(stores: Stores, project: str) -> None:
    for each in "abcde":
        await create(stores, project, each)
    pages, marker = [], None
    for _ in range(3):
        page = await stores.management.list_queues(project, marker=marker, limit=2)
        pages.append([record.queue.name for record in page])
        marker = pages[-1][-1]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert await names(stores, project, marker="bb") == ["c", "d", "e"]
    assert await names(stores, project, marker="e") == []


async def test_a_part_of_the_name_is_taken_literally(stores: Stores, project: str) -> None:
    for each in ("a.b", "axb", "a-b", "AXB", "b"):
        await create(stores, project, each)
    assert await names(stores, project, name_contains=".") == ["a.b"]
    assert await names(stores, project, name_contains="x") == ["axb"]
    assert await names(stores, project, name_contains="b") == ["a-b", "a.b", "axb", "b"]
    for nothing in (".*", "[ab]", "^a", "(", "\\", "%", "*"):
        assert await names(stores, project, name_contains=nothing) == []


async def test_queues_are_found_by_metadata(stores: Stores, project: str) -> None:
    await create(stores, project, "one", {"n": 1, "color": "red", "a.b": "x"})
    await create(stores, project, "true", {"n": True, "color": "red"})
    await create(stores, project, "text", {"n": "1", "color": "blue", "a": {"b": "x"}})
    await create(stores, project, "none", {"color": "blue", "$n": 1})
    expected: list[tuple[dict[str, Any], list[str]]] = [
        ({"color": "red"}, ["one", "true"]),
        ({"n": 1}, ["one"]),
        ({"n": True}, ["true"]),
        ({"n": "1"}, ["text"]),
        ({"n": 1, "color": "red"}, ["one"]),
        ({"n": 1, "color": "blue"}, []),
        ({"a.b": "x"}, ["one"]),
        ({"a": {"b": "x"}}, ["text"]),
        ({"$n": 1}, ["none"]),
        ({"n": {"$exists": False}}, []),
        ({}, ["none", "one", "text", "true"]),
    ]
    for wanted, found in expected:
        assert await names(stores, project, metadata=wanted) == found, wanted


async def test_a_filtered_page_is_full_unless_the_list_ends(stores: Stores, project: str) -> None:
    """A page shorter than the limit is the end, so filters may not shorten it."""
    for n in range(12):
        await create(stores, project, f"q{n:02}", {"even": n % 2 == 0})
    first = await stores.management.list_queues(project, limit=4, metadata={"even": True})
    assert [record.queue.name for record in first] == ["q00", "q02", "q04", "q06"]
    second = await stores.management.list_queues(
        project, marker="q06", limit=4, metadata={"even": True}
    )
    assert [record.queue.name for record in second] == ["q08", "q10"]


async def test_a_project_has_no_more_queues_than_it_may(stores: Stores, project: str) -> None:
    async def attempt(name: str, most: int = 2) -> bool:
        ref = QueueRef(project, name)
        _, created = await stores.management.create_queue(ref, {}, max_queues=most)
        return created

    with pytest.raises(LimitReached):
        await attempt("a", most=0)
    assert await names(stores, project) == []
    assert await attempt("a")
    assert await attempt("b")
    with pytest.raises(LimitReached):
        await attempt("c")
    assert not await attempt("a")  # it is there: no error
    record = await stores.management.get_queue(QueueRef(project, "a"))
    assert record is not None
    await stores.management.delete_queue(record.queue, version=record.version)
    assert await attempt("c")
    assert await names(stores, project) == ["b", "c"]


async def test_racing_creators_of_two_servers_fill_a_project_exactly(
    stores: Stores, project: str
) -> None:
    servers = await stores.peers(2)

    async def attempt(number: int) -> bool:
        management = servers[number % 2].management
        _, created = await management.create_queue(
            QueueRef(project, f"q{number}"), {}, max_queues=3
        )
        return created

    outcomes = await asyncio.gather(*map(attempt, range(8)), return_exceptions=True)
    assert outcomes.count(True) == 3, outcomes
    assert sum(isinstance(one, LimitReached) for one in outcomes) == 5, outcomes
    assert len(await names(stores, project)) == 3


async def test_the_sources_of_a_dead_letter_queue_are_indexed(stores: Stores, project: str) -> None:
    async def sources(target: str = "dead", limit: int = 100) -> list[str]:
        found = await stores.management.dead_letter_sources(QueueRef(project, target), limit=limit)
        return sorted(found)

    assert await sources() == []
    a = await create(stores, project, "a", {"_dead_letter_queue": "dead"})
    b = await create(stores, project, "b", {"_dead_letter_queue": "dead", "_max_claim_count": 2})
    await create(stores, project, "c", {"_dead_letter_queue": "dead.too"})
    await create(stores, project, "d")
    await create(stores, project + "x", "a", {"_dead_letter_queue": "dead"})
    assert await sources() == ["a", "b"]
    assert len(await sources(limit=1)) == 1
    a = await stores.management.update_queue(
        QueueRecord(a.queue, {"_dead_letter_queue": "dead.too"}, a.version)
    )
    assert await sources() == ["b"]
    assert await sources("dead.too") == ["a", "c"]
    await stores.management.delete_queue(b.queue, version=b.version)
    assert await sources() == []
    await stores.management.update_queue(QueueRecord(a.queue, {}, a.version))
    assert await sources("dead.too") == ["c"]
    await stores.messages.purge(QueueRef(project, "c"), forget=True)
    assert await sources("dead.too") == []


async def test_exposing_queues_are_found_in_any_project(stores: Stores, project: str) -> None:
    async def exposing() -> set[QueueRef]:
        found = await stores.management.exposing_queues(limit=10_000)
        assert all(record.exposing for record in found)
        return {record.queue for record in found if record.queue.project.startswith(project)}

    one, two = await create(stores, project, "a"), await create(stores, project + "x", "b")
    assert await exposing() == set()
    one = await stores.management.update_queue(
        QueueRecord(one.queue, {"a": 1}, one.version, exposing=True)
    )
    await stores.management.update_queue(QueueRecord(two.queue, {}, two.version, exposing=True))
    assert await exposing() == {one.queue, two.queue}
    assert len(await stores.management.exposing_queues(limit=1)) == 1
    assert (await stores.management.get_queue(one.queue)) == one
    await stores.management.update_queue(QueueRecord(one.queue, {"a": 1}, one.version))
    assert await exposing() == {two.queue}
    await stores.messages.purge(two.queue, forget=True)
    assert await exposing() == set()


async def test_filtered_queues_are_found_by_project(stores: Stores, project: str) -> None:
    stores.need(Capability.FAN_OUT)
    a = await create(stores, project, "a", {"_filter": "x = 1"})
    await create(stores, project, "b", {"_priority": "1"})
    c = await create(stores, project + "x", "c", {"_filter": "x = 1"})
    for one in (a, c):
        assert await stores.management.filtered_queues(one.queue.project) == [one]
    await stores.management.update_queue(QueueRecord(a.queue, {}, a.version))
    await stores.messages.purge(c.queue, forget=True)
    for one in (a, c):
        assert not await stores.management.filtered_queues(one.queue.project)


async def test_both_stores_answer_a_ping_and_can_be_closed_twice(stores: Stores) -> None:
    await stores.messages.ping()
    await stores.management.ping()
    await stores.messages.open()
    await stores.close()
    await stores.close()
