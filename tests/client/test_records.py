"""Objects of an answer become dataclasses by the types of their fields."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest

from zaqar_lite.client import AccessKey, Stats
from zaqar_lite.client.serialization import reader


@dataclasses.dataclass
class Part:
    name: str
    at: dt.datetime | None


@dataclasses.dataclass
class Whole:
    id: str
    count: int | None
    body: Any
    first: Part | None = None
    parts: tuple[Part, ...] = ()
    words: tuple[str, ...] = ("none",)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


NOON = dt.datetime(2030, 1, 2, 12, tzinfo=dt.UTC)
PART = {"name": "p", "at": "2030-01-02T12:00:00Z"}


def test_every_kind_of_field_is_read() -> None:
    entry = {
        "id": "a",
        "count": 0,
        "body": [1],
        "first": PART,
        "parts": [PART, {"name": "q", "at": None}],
        "words": ["x", "y"],
        "sizes": {"s": 1},
        "newer": "than this client",
    }
    read = reader(Whole)(entry)
    first, rest = Part("p", NOON), Part("q", None)
    assert read == Whole("a", 0, [1], first, (first, rest), ("x", "y"), {"s": 1})


def test_what_is_absent_or_null_is_the_default_or_none() -> None:
    bare = Whole("a", None, None)
    assert reader(Whole)({"id": "a"}) == bare
    nulls = dict.fromkeys(("count", "body", "first", "parts", "words", "sizes"))
    assert reader(Whole)({"id": "a", **nulls}) == bare


@pytest.mark.parametrize("entry", [{}, {"id": None}, {"identity": "a"}])
def test_a_field_that_must_be_there_is_asked_for(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="id"):
        reader(Whole)(entry)


def test_a_field_may_have_another_key() -> None:
    read = reader(Part, at="moved_at")
    assert read({"name": "p", "moved_at": PART["at"], "at": 3}) == Part("p", NOON)


def test_the_sdks_own_records_are_read() -> None:
    key = reader(AccessKey)({"id": "k", "project": None, "grants": ["*:*"], "disabled": False})
    assert key == AccessKey("k", None, ("*:*",), None, None, disabled=False)
    newest = {"href": "/m", "age": 1, "created": PART["at"]}
    stats = reader(Stats)({"total": 2, "free": 1, "claimed": 1, "newest": newest})
    assert stats.newest is not None
    assert (stats.newest.created, stats.ready, stats.oldest) == (NOON, None, None)
