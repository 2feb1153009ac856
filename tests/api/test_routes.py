"""Where the path of a request leads, and how many paths are kept in mind."""

import pytest

from zaqar_lite.api.request import Route
from zaqar_lite.api.routes import LONGEST_KEPT, MOST_KEPT, RouteTree, route


def _routes(*places: str) -> tuple[Route, ...]:
    return tuple(route(place, "messages:get_all read", (200,)) for place in places)


@pytest.fixture
def tree() -> RouteTree:
    """The tree of three places."""
    return RouteTree(_routes("GET /v2/queues", "GET /v2/queues/{q}/messages", "GET /v2/queues/{q}"))


def test_a_path_is_found_again_at_the_same_place(tree: RouteTree) -> None:
    for path, values in (
        ("/v2/queues", ()),
        ("/v2/queues/a", ("a",)),
        ("/v2/queues/a/messages", ("a",)),
        ("/v2/queues/b/messages", ("b",)),
    ):
        first, second = tree.find(path), tree.find(path)
        assert first is not None
        assert first[1] == values
        assert second == first
    for path in ("/v2", "/v2/queues/a/claims", "/v2/queues//messages", "/v2/queues/a/messages/"):
        assert tree.find(path) is tree.find(path) is None


def test_only_so_many_paths_are_kept(tree: RouteTree) -> None:
    for number in range(MOST_KEPT):
        tree.find(f"/v2/queues/{number}")
    assert len(tree.known) == MOST_KEPT
    assert tree.find("/v2/queues/another") is not None
    assert len(tree.known) == MOST_KEPT
    assert list(tree.known)[-1] == "/v2/queues/another"


def test_longer_paths_are_found_and_not_kept(tree: RouteTree) -> None:
    longest = "/v2/queues/".ljust(LONGEST_KEPT, "x")
    for path in (longest, f"{longest}x"):
        found = tree.find(path)
        assert found is not None
        assert found[1] == (path.removeprefix("/v2/queues/"),)
    assert list(tree.known) == [longest]
