"""Paths as they are written: over a socket, since HTTP libraries tidy them first."""

from collections.abc import Iterator

import pytest

from tests.api.sockets import Raw
from tests.server import ServerProcess


@pytest.fixture(scope="module")
def raw() -> Iterator[Raw]:
    """A connection to a server."""
    with ServerProcess("memory://") as server, Raw(server) as connection:
        yield connection


@pytest.mark.parametrize("name", [".", "..", "%2E", "%2e."])
@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("PUT", ""), ("GET", "/stats"), ("GET", "/messages")]
)
def test_a_queue_has_no_name_that_means_another_path(
    raw: Raw, name: str, method: str, suffix: str
) -> None:
    refused = raw.call(method, f"/v2/queues/{name}{suffix}")
    assert (refused.status, refused.json()["title"]) == (400, "Invalid queue identification")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_dead_letter_queue_neither(raw: Raw, name: str) -> None:
    refused = raw.call("PUT", "/v2/queues/q", b'{"_dead_letter_queue": "%b"}' % name.encode())
    assert (refused.status, refused.json()["title"]) == (400, "Invalid API request")


@pytest.mark.parametrize(
    "path",
    [
        *("/v2/queues/q%2Fstats", "/v2/queues%2fq", "/v2%2Fqueues", "/no%2Fpe"),
        *("/v2/queues/q/messages/a%2fb", "/v2/queues/q/%2f/messages"),
    ],
)
def test_an_encoded_slash_is_refused(raw: Raw, path: str) -> None:
    """A gateway takes it for a part of a name, and this server would for the end of one."""
    refused = raw.call("GET", path)
    assert (refused.status, refused.json()["title"]) == (400, "Invalid API request")
    assert "%2F" in refused.json()["description"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/queues/%71", 200),  # q
        ("/v2/queues/q%252Fstats", 400),  # the name is q%2Fstats
        ("/v2/queues/%ff", 400),
        ("/v2/queues/q/messages?marker=a%2Fb", 200),
        ("/v2//queues", 404),
    ],
)
def test_other_encodings_are_read_once(raw: Raw, path: str, status: int) -> None:
    assert raw.call("GET", path).status == status


def test_a_page_of_another_site_can_not_use_a_server_on_loopback(raw: Raw) -> None:
    """Its name may be resolved to this machine, and the browser says that name."""
    refused = raw.call("GET", "/v2/queues", Host="attacker.example:8888")
    assert (refused.status, refused.json()["title"]) == (400, "Invalid header value")
    assert raw.call("GET", "/v2/queues", Host="localhost:8888").status == 200
