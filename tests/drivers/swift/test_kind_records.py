"""Records: names of objects that sort as records do, and versions under clocks that differ."""

import pytest

from tests.contract.stores import Stores
from tests.drivers.swift.together import OpenSwift
from zaqar_lite.domain.models import Record
from zaqar_lite.storage.swift.management import object_name

pytestmark = pytest.mark.anyio

TEXTS = [
    "",
    "!",
    "!!",
    "!~",
    "a",
    "a!",
    "a!!b",
    "a0",
    "a/b",
    ".",
    "..",
    "~",
    "\0",
    "\x7f",
    "乾",
    "🧀",
]


def test_object_names_sort_as_project_and_name() -> None:
    pairs = sorted((project, name) for project in TEXTS for name in TEXTS)
    names = [object_name(*pair).encode() for pair in pairs]
    assert names == sorted(set(names))


def test_object_names_stand_in_a_path() -> None:
    for name in (object_name("p", text) for text in TEXTS):
        assert not {"/", ".", "\0"} & set(name)


@pytest.mark.parametrize("sign", ["/", "x", "é", "🧀"])
def test_long_names_fit_and_differ(sign: str) -> None:
    names = {object_name("p", sign * 1_000 + end) for end in "abc"}
    assert len(names) == 3
    assert all(len(name.encode()) <= 1_024 for name in names)


async def test_long_names_are_read_and_listed(open_swift: OpenSwift) -> None:
    store = (await open_swift()).management
    texts = ["n", "/" * 400, "/" * 401, "🧀" * 300]
    written = [await store.put_record("kind", "p" * 250, text, b"1", expected=0) for text in texts]
    for record in written:
        assert await store.get_record("kind", record.project, record.name) == record
    listed = await store.list_records("kind", "p" * 250, limit=10)
    assert {record.name for record in listed} == set(texts)
    assert await store.list_records("kind", limit=10) == listed


async def test_long_names_are_listed_in_order_page_by_page(open_swift: OpenSwift) -> None:
    """More of them begin alike than an object's name can hold, and a short one among them."""
    store = (await open_swift()).management
    alike = "x" * 950
    names = [f"{alike}{end}" for end in ("", *"abcdefg", "b" * 100, "d" * 100, "🧀" * 100)]
    pairs = sorted(("p", name) for name in ["a", *names, "y", "z"])
    for project, name in pairs:
        await store.put_record("kind", project, name, b"1", expected=0)
    for limit in (1, 3, 20):
        listed: list[tuple[str, str]] = []
        while page := await store.list_records(
            "kind", "p", after=listed[-1] if listed else None, limit=limit
        ):
            listed += [(record.project, record.name) for record in page]
        assert listed == pairs


async def test_versions_grow_where_the_next_writer_is_behind(
    open_swift: OpenSwift, locks: str
) -> None:
    """A deletion leaves a tombstone until all clocks are past its version."""
    first, second = [await open_swift(coordination_url=locks) for _ in range(2)]
    for _ in range(3):
        ahead = await put_ahead(first)
        assert await first.management.delete_record("kind", "p", "n")
        behind = await second.management.put_record("kind", "p", "n", b"1", expected=0)
        assert behind.version > ahead.version
        assert await second.management.delete_record("kind", "p", "n")


async def put_ahead(stores: Stores) -> Record:
    """Write a record by a clock that is ahead for the time being."""
    stores.clock.advance(1_000)
    record = await stores.management.put_record("kind", "p", "n", b"1", expected=0)
    stores.clock.advance(-1_000)
    return record
