"""What the driver's layout stands on, proven on the real Swift: content types that POST changes."""

import json
import time
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.services import SwiftServer
from zaqar_lite.storage.swift.layout import parameters


@pytest.fixture
def container(swift_server: SwiftServer) -> Iterator[httpx.Client]:
    """A client whose base is a container of the test's own."""
    answer = httpx.get(
        swift_server.auth_url,
        headers={"X-Auth-User": swift_server.user, "X-Auth-Key": swift_server.key},
    )
    base = f"{answer.headers['X-Storage-Url']}/probe-{uuid4().hex}"
    headers = {"X-Auth-Token": answer.headers["X-Auth-Token"]}
    httpx.put(base, headers=headers).raise_for_status()
    with httpx.Client(base_url=base, headers=headers) as client:
        yield client


def listed(container: httpx.Client, name: str) -> str:
    (entry,) = json.loads(container.get("", params={"format": "json", "prefix": name}).text)
    return str(entry["content_type"])


def test_a_content_type_changed_by_post_shows_in_the_listing(container: httpx.Client) -> None:
    """On one node the lag is 0: the object server tells the container before it answers."""
    container.put("/a", content=b"body", headers={"Content-Type": "application/x-a;n=-1"})
    longest = 0.0
    for number in range(20):
        answer = container.post("/a", headers={"Content-Type": f"application/x-a;n={number};k="})
        assert answer.status_code == 202
        started = time.monotonic()
        while parameters(listed(container, "a"))["n"] != str(number):
            assert time.monotonic() - started < 10, "the listing never shows the change"
        longest = max(longest, time.monotonic() - started)
    print(f"longest lag, one listing included: {longest * 1000:.0f} ms")
    assert container.get("/a").content == b"body"


def test_a_post_replaces_the_deadline_too(container: httpx.Client) -> None:
    """So every POST of the driver says X-Delete-At again."""
    ends = str(int(time.time()) + 1000)
    container.put("/a", headers={"Content-Type": "a/b", "X-Delete-At": ends})
    assert container.head("/a").headers["X-Delete-At"] == ends
    container.post("/a", headers={"Content-Type": "a/b;n=1"})
    assert "X-Delete-At" not in container.head("/a").headers


def test_a_post_makes_nothing_that_was_deleted(container: httpx.Client) -> None:
    """So a mark that comes late cannot bring an acknowledged message back."""
    container.put("/a", content=b"x")
    container.delete("/a")
    assert container.post("/a", headers={"Content-Type": "a/b"}).status_code == 404
    assert json.loads(container.get("", params={"format": "json"}).text) == []


def test_long_states_are_listed_whole(container: httpx.Client) -> None:
    long = "application/x-a;" + ";".join(f"k{n}={'v' * 36}" for n in range(20))
    container.put("/a", headers={"Content-Type": long})
    assert parameters(listed(container, "a")) == parameters(long)
