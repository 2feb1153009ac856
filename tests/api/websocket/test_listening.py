"""A connection that subscribes itself: notifications come as frames, and end with it."""

import uuid
from typing import Any

import httpx
import msgspec
import pytest
from websockets.exceptions import InvalidStatus

from tests.api.websocket.talk import Talk
from tests.server import ServerProcess
from tests.services.process import free_port


def post(server: ServerProcess, project: str, *bodies: Any, queue: str = "q") -> None:
    """Post by HTTP: whoever posts, the connection is told."""
    answer = httpx.post(
        f"{server.url}/v2/queues/{queue}/messages",
        headers={"Client-ID": uuid.uuid4().hex, "X-Project-ID": project},
        json={"messages": [{"body": body, "ttl": 300} for body in bodies]},
    )
    assert answer.status_code == 201, answer.text


def subscriptions(talk: Talk, queue: str = "q") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = talk.ask("subscription_list", queue_name=queue).body[
        "subscriptions"
    ]
    return found


def test_messages_come_as_frames_of_the_form_that_was_subscribed_in(
    server: ServerProcess, talk: Talk
) -> None:
    made = talk.ask("subscription_create", queue_name="q", ttl=600)
    assert (made.status, made.body["message"]) == (201, "Subscription q created.")
    talk.binary = not talk.binary  # what it asks in afterwards changes nothing
    (shown,) = subscriptions(talk)
    assert shown["id"] == made.body["subscription_id"]
    assert (shown["source"], shown["ttl"]) == ("q", 600)
    post(server, talk.project, {"status": "disco queen"})
    data = talk.socket.recv(30)
    assert isinstance(data, bytes) != talk.binary
    told = msgspec.msgpack.decode(data) if isinstance(data, bytes) else msgspec.json.decode(data)
    assert told == {
        "body": {"status": "disco queen"},
        "ttl": 300,
        "queue_name": "q",
        "Message_Type": "Notification",
    }


def test_a_second_subscription_of_the_same_connection_is_a_conflict(talk: Talk) -> None:
    for subscriber in ("websocket:x/y", "websocket:", "ftp://x", ""):  # nobody can name one
        wrong = talk.ask("subscription_create", queue_name="q", subscriber=subscriber)
        assert wrong.status == 400
    assert subscriptions(talk) == []
    wanted = {"queue_name": "q", "subscriber": "http://example.org"}
    for body, status in (
        ({"queue_name": "q"}, 201),
        ({"queue_name": "q"}, 409),
        ({"queue_name": "r"}, 201),
        (wanted, 201),
        (wanted, 409),
    ):
        assert talk.ask("subscription_create", None, **body).status == status


def test_its_subscriptions_end_with_a_connection(server: ServerProcess) -> None:
    project = uuid.uuid4().hex
    with Talk(server, project=project) as staying:
        with Talk(server, project=project) as going:
            assert going.ask("subscription_create", queue_name="q").status == 201
            webhook = {"queue_name": "q", "subscriber": "http://example.org"}
            kept = going.ask("subscription_create", None, **webhook).body["subscription_id"]
            assert staying.ask("subscription_create", queue_name="q").status == 201
            assert len(subscriptions(staying)) == 3
        server.wait_for(lambda: len(subscriptions(staying)) == 2)
        assert kept in {one["id"] for one in subscriptions(staying)}
        post(server, project, "still heard")
        assert staying.read()["body"] == "still heard"


def test_one_that_was_removed_is_told_nothing_more(server: ServerProcess) -> None:
    with Talk(server) as talk:
        known = talk.ask("subscription_create", queue_name="q").body["subscription_id"]
        assert talk.ask("subscription_create", queue_name="r").status == 201
        assert talk.ask("subscription_delete", queue_name="q", subscription_id=known).status == 204
        post(server, talk.project, "unheard")
        post(server, talk.project, "heard", queue="r")
        assert talk.read()["body"] == "heard"


def test_a_reader_of_notifications_who_is_too_slow_is_sent_away(server: ServerProcess) -> None:
    with Talk(server, max_queue=1) as talk:
        assert talk.ask("subscription_create", queue_name="q").status == 201
        with Talk(server, project=talk.project) as other:
            for _ in range(120):  # 24 MB: more than the buffers on the way hold
                post(server, talk.project, "x" * 200_000)
                if not subscriptions(other):
                    break
            server.wait_for(lambda: not subscriptions(other))
        # It may have been cut off before it read that far.
        assert (talk.end() or (1013,))[0] == 1013


def test_a_connection_is_asked_to_confirm() -> None:
    env = {
        "ZAQAR_LITE_REQUIRE_CONFIRMATION": "true",
        "ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "secret" * 6,
    }
    with ServerProcess("memory://", env=env) as server, Talk(server) as talk:
        assert talk.ask("subscription_create", queue_name="q", ttl=600).status == 201
        asked = talk.read()
        assert asked["Message_Type"] == "SubscriptionConfirmation"
        post(server, talk.project, "unheard")
        with pytest.raises(TimeoutError):
            talk.read(1)
        names = ("URL-Signature", "URL-Methods", "URL-Paths", "URL-Expires", "X-Project-ID")
        confirmed = httpx.put(
            f"{server.url}{asked['URL-Paths']}",
            headers={"Client-ID": uuid.uuid4().hex, **{name: asked[name] for name in names}},
            json=asked["SubscribeBody"],
        )
        assert confirmed.status_code == 204, confirmed.text
        post(server, talk.project, "heard")
        heard = talk.read()["body"]
        if heard == "unheard":  # a busy server looked for its subscribers only now
            heard = talk.read()["body"]
        assert heard == "heard"


def test_a_port_of_its_own_speaks_at_the_root_and_nothing_else() -> None:
    port = free_port()
    with ServerProcess("memory://", "--websocket-port", str(port)) as server:
        with Talk(server, path="/v2/ws") as by_path, Talk(server, port=port, path="/") as by_port:
            by_port.headers["X-Project-ID"] = by_path.project
            assert by_path.ask("queue_create", queue_name="q").status == 201
            assert by_port.ask("queue_list").body == {"queues": [{"name": "q"}]}
        with Talk(server, port=port) as talk:
            assert talk.ask("ping_node").status == 204
        refused = httpx.get(f"http://127.0.0.1:{port}/")
        assert (refused.status_code, refused.headers["upgrade"]) == (426, "websocket")
        with pytest.raises(InvalidStatus), Talk(server, path="/"):
            pass


def test_a_connection_of_another_process_is_reached(request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue("redis_server").url
    with ServerProcess(store) as one, ServerProcess(store) as other, Talk(one) as talk:
        assert talk.ask("subscription_create", queue_name="q").status == 201
        bodies = [f"message {number}" for number in range(40)]
        for body in bodies:
            post(other, talk.project, body)
        assert sorted(talk.read(30)["body"] for _ in bodies) == sorted(bodies)
