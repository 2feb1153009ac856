"""python-zaqarclient's WebSocket transport, unmodified."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from zaqarclient.transport import errors, request, ws

from tests.server import ServerProcess
from tests.services.process import free_port


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
