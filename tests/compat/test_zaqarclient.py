"""python-zaqarclient, unmodified, over HTTP and over a WebSocket."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from zaqarclient.queues import client as zaqarclient
from zaqarclient.transport import errors, request, ws

from tests.server import ServerProcess
from tests.services.process import free_port


@pytest.fixture
def client(server: ServerProcess, project: str) -> Any:
    options = {"backend": "noauth", "options": {"os_project_id": project}}
    return zaqarclient.Client(server.url, version=2, conf={"auth_opts": options})


@pytest.fixture
def queue(client: Any) -> Iterator[Any]:
    made = client.queue("compat", force_create=True)
    yield made
    made.delete()


def test_pings_and_reads_home_and_health(client: Any) -> None:
    assert client.ping() is True
    assert "rel/queue" in client.homedoc()["resources"]
    assert client.health()["storage_reachable"] is True


def test_lists_queues_with_their_metadata(client: Any, queue: Any) -> None:
    queue.metadata(new_meta={"colour": "red"})
    found, _ = client.queues(detailed=True)
    (listed,) = list(found)
    assert listed._name == "compat"
    assert listed.metadata()["colour"] == "red"
    queues, count = client.queues(with_count=True)
    assert (len(list(queues)), count) == (1, 1)


def test_changes_metadata_by_its_computed_patch(queue: Any) -> None:
    queue.metadata(new_meta={"a": 1, "b": 2, "_default_message_ttl": 300})
    queue.metadata(new_meta={"a": 9})
    shown = queue.metadata()
    assert (shown["a"], "b" in shown, shown["_default_message_ttl"]) == (9, False, 3600)


def test_posts_lists_and_gets_messages(queue: Any) -> None:
    posted = queue.post([{"body": n, "ttl": 300} for n in range(25)])
    assert len(posted["resources"]) == 25
    listed = list(queue.messages(echo=True, limit=10).stream())
    assert [message.body for message in listed] == list(range(25))
    assert [message.href for message in listed] == posted["resources"]
    one = queue.message(listed[3].id)
    assert (one.body, one.ttl) == (3, 300)
    some = queue.messages(*[message.id for message in listed[:2]])
    assert sorted(message.body for message in some) == [0, 1]
    assert queue.stats["messages"]["free"] == 25


def test_deletes_messages_one_by_one_and_in_bulk(queue: Any) -> None:
    queue.post([{"body": n, "ttl": 300} for n in range(4)])
    listed = list(queue.messages(echo=True))
    listed[0].delete()
    queue.delete_messages(*[message.id for message in listed[1:3]])
    assert [message.body for message in queue.messages(echo=True)] == [3]


def test_pops_messages(queue: Any) -> None:
    queue.post([{"body": n, "ttl": 300} for n in range(3)])
    assert sorted(message.body for message in queue.pop(count=2)) == [0, 1]
    assert queue.stats["messages"]["total"] == 1


def test_claims_renews_deletes_and_releases(queue: Any) -> None:
    queue.post([{"body": n, "ttl": 300} for n in range(3)])
    claim = queue.claim(limit=2)
    held = list(claim)
    assert [message.body for message in held] == [0, 1]
    assert claim.ttl == 300
    held[0].delete()
    claim.update(ttl=100, grace=100)
    again = queue.claim(id=claim.id)
    assert (again.ttl, [message.body for message in again]) == (100, [1])
    claim.delete()
    assert [message.body for message in queue.claim()] == [1, 2]
    assert list(queue.claim()) == []


def test_counts_claims_up_to_the_dead_letter_queue(
    server: ServerProcess, client: Any, project: str
) -> None:
    # Not by metadata(): the client's own patch adds a key that is null by default, then removes it.
    queue = client.queue("failing")
    httpx.put(
        f"{server.url}/v2/queues/failing",
        json={"_max_claim_count": 1, "_dead_letter_queue": "dead"},
        headers={"Client-ID": uuid.uuid4().hex, "X-Project-ID": project},
    ).raise_for_status()
    queue.post({"body": "poison", "ttl": 300})
    queue.claim().delete()
    assert list(queue.claim()) == []
    assert [message.body for message in client.queue("dead").messages(echo=True)] == ["poison"]


def test_signs_urls_that_another_client_can_use(
    server: ServerProcess, queue: Any, project: str
) -> None:
    queue.post({"body": 1, "ttl": 300})
    signed = queue.signed_url(paths=["messages"], methods=["GET", "POST"])
    conf = {
        "auth_opts": {
            "backend": "signed-url",
            "options": {
                "signature": signed["signature"],
                "expires": signed["expires"],
                "methods": signed["methods"],
                "paths": signed["paths"],
                "os_project_id": project,
            },
        }
    }
    other = zaqarclient.Client(server.url, version=2, conf=conf)
    assert [message.body for message in other.queue("compat").messages(echo=True)] == [1]
    with pytest.raises(errors.ResourceNotFound):
        other.queue("other").post({"body": 2, "ttl": 300})


def test_purges(queue: Any) -> None:
    queue.post([{"body": n, "ttl": 300} for n in range(3)])
    queue.purge()
    assert queue.stats["messages"]["total"] == 0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The port that old clients know."""
    port = free_port()
    with ServerProcess("memory://", "--websocket-port", str(port)) as server:
        told = f"listening on {server.url} and ws://127.0.0.1:{port} (store memory://)"
        server.wait_for(lambda: told in server.log())
        yield f"ws://127.0.0.1:{port}"


@pytest.fixture
def transport() -> Iterator[Any]:
    """The transport, as zaqarclient configures it."""
    options = {"os_auth_token": "token", "os_project_id": uuid.uuid4().hex}
    with ws.WebsocketTransport({"auth_opts": {"backend": "keystone", "options": options}}) as made:
        yield made


def test_its_requests_are_answered(transport: Any, endpoint: str) -> None:
    def send(action: str, **body: Any) -> Any:
        answer = transport.send(request.Request(endpoint, action, content=json.dumps(body)))
        return answer.status_code, json.loads(answer.content)

    assert send("queue_create", queue_name="foo") == (201, "Queue foo created.")
    status, posted = send("message_post", queue_name="foo", messages=[{"body": 1, "ttl": 60}])
    assert (status, len(posted["message_ids"])) == (201, 1)
    status, claimed = send("claim_create", queue_name="foo", ttl=60, grace=60)
    assert (status, [one["body"] for one in claimed["messages"]]) == (201, [1])
    assert send("queue_list")[1] == {"queues": [{"name": "foo"}]}
    assert send("subscription_create", queue_name="foo", ttl=60)[0] == 201
    send("message_post", queue_name="foo", messages=[{"body": "told", "ttl": 60}])
    assert transport.recv()["body"] == "told"


def test_an_error_is_the_exception_of_its_status(transport: Any, endpoint: str) -> None:
    absent = json.dumps({"queue_name": "foo", "message_id": "x"})
    with pytest.raises(errors.ResourceNotFound):
        transport.send(request.Request(endpoint, "message_get", content=absent))
    with pytest.raises(errors.MalformedRequest) as raised:
        transport.send(request.Request(endpoint, "explode", content="{}"))
    assert "explode is not a valid action" in str(raised.value)
