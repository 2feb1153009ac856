"""Where the path of a request leads."""

import pytest

from zaqar_lite.api.request import Route
from zaqar_lite.api.routes import RouteTree, route


def _routes(*places: str) -> tuple[Route, ...]:
    return tuple(route(place, "messages:get_all read", (200,)) for place in places)


@pytest.fixture
def tree() -> RouteTree:
    """The tree of three places."""
    return RouteTree(_routes("GET /v2/queues", "GET /v2/queues/{q}/messages", "GET /v2/queues/{q}"))


def test_a_path_is_found_with_its_values(tree: RouteTree) -> None:
    for path, values in (
        ("/v2/queues", ()),
        ("/v2/queues/a", ("a",)),
        ("/v2/queues/a/messages", ("a",)),
        ("/v2/queues/b/messages", ("b",)),
    ):
        found = tree.find(path)
        assert found is not None
        assert found[1] == values
    for path in ("/v2", "/v2/queues/a/claims", "/v2/queues//messages", "/v2/queues/a/messages/"):
        assert tree.find(path) is None
