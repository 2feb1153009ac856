"""openstacksdk's message proxy, unmodified, against a real server."""

import uuid
from collections.abc import Iterator
from typing import Any

import openstack
import pytest
from keystoneauth1 import noauth, session
from openstack import exceptions
from openstack.message.v2.claim import Claim

from tests.server import ServerProcess

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::openstack.warnings.RemovedInSDK50Warning"
)


class Project(noauth.NoAuth):
    """No authentication, and a project: what keystoneauth's own plugin leaves out."""

    def __init__(self, endpoint: str, project: str) -> None:
        super().__init__(endpoint=endpoint)
        self._project = project

    def get_project_id(self, session: Any, **_: Any) -> str:
        return self._project


@pytest.fixture
def message(server: ServerProcess, project: str) -> Iterator[Any]:
    connection = openstack.connection.Connection(
        session=session.Session(auth=Project(server.url, project)),
        message_endpoint_override=server.url,
    )
    yield connection.message
    connection.close()


@pytest.fixture
def queue() -> str:
    return f"sdk-{uuid.uuid4().hex}"


def test_creates_lists_and_deletes_queues(message: Any, queue: str) -> None:
    message.create_queue(name=queue, metadata={"a": 1})
    assert [one.name for one in message.queues()] == [queue]
    assert message.get_queue(queue) is not None
    message.delete_queue(queue)
    assert list(message.queues()) == []


def test_posts_lists_gets_and_deletes_messages(message: Any, queue: str) -> None:
    resources = message.post_message(queue, [{"body": n, "ttl": 300} for n in range(12)])
    assert len(resources) == 12
    listed = list(message.messages(queue, echo=True))
    assert [one.body for one in listed] == list(range(12))
    found = message.get_message(queue, listed[4].id)
    assert found.body == 4
    message.delete_message(queue, listed[4].id)
    with pytest.raises(exceptions.NotFoundException):
        message.get_message(queue, listed[4].id)


def test_claims_renews_and_releases(message: Any, queue: str) -> None:
    message.post_message(queue, [{"body": n, "ttl": 300} for n in range(3)])
    # create_claim() of openstacksdk 4.22 reads the claim's id from an attribute that it has filled
    # with the cloud's location by then, whatever the server answers; so the resource by itself.
    claim = Claim(queue_name=queue, ttl=100, grace=100).create(message)
    claim_id = claim.messages[0]["href"].rsplit("=", 1)[1]
    assert message.get_claim(queue, claim_id).ttl == 100
    message.update_claim(queue, claim_id, ttl=200, grace=100)
    assert message.get_claim(queue, claim_id).ttl == 200
    assert list(message.messages(queue, echo=True)) == []
    message.delete_claim(queue, claim_id)
    assert len(list(message.messages(queue, echo=True))) == 3
    with pytest.raises(exceptions.NotFoundException):
        message.get_claim(queue, claim_id)


def test_subscribes_lists_gets_and_ends(message: Any, queue: str) -> None:
    made = message.create_subscription(
        queue, subscriber="http://receiver.example/hook", ttl=600, options={"a": 1}
    )
    (listed,) = message.subscriptions(queue)
    assert (listed.subscriber, listed.ttl, listed.options) == (
        "http://receiver.example/hook",
        600,
        {"a": 1},
    )
    found = message.get_subscription(queue, made.subscription_id)
    assert (found.id, found.source) == (listed.id, queue)
    message.delete_subscription(queue, made.subscription_id)
    assert list(message.subscriptions(queue)) == []
    with pytest.raises(exceptions.NotFoundException):
        message.get_subscription(queue, made.subscription_id)
