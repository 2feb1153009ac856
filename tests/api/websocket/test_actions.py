"""What each action answers: the same rules as over HTTP, in the form that Zaqar's frames have."""

import json
import uuid
from typing import Any

import httpx
import pytest

from tests.api.websocket.talk import Answer, Talk
from tests.server import ServerProcess


def post(talk: Talk, *bodies: Any, queue: str = "q", **more: Any) -> list[str]:
    answer = talk.ask(
        "message_post", queue_name=queue, messages=[{"body": body, **more} for body in bodies]
    )
    assert answer.status == 201, answer
    ids: list[str] = answer.body["message_ids"]
    return ids


def test_a_queue_is_made_listed_read_and_removed(talk: Talk) -> None:
    made = talk.ask("queue_create", queue_name="q", metadata={"colour": "red"})
    assert (made.status, made.body) == (201, "Queue q created.")
    again = talk.ask("queue_create", queue_name="q")
    assert (again.status, again.body) == (204, "Queue q created.")
    talk.ask("queue_create", queue_name="r")
    assert talk.ask("queue_list").body == {"queues": [{"name": "q"}, {"name": "r"}]}
    assert talk.ask("queue_list", marker="q").body == {"queues": [{"name": "r"}]}
    detailed = talk.ask("queue_list", limit=1, detailed=True)
    assert detailed.body == {"queues": [{"name": "q", "metadata": {"colour": "red"}}]}
    assert talk.ask("queue_get", queue_name="q").body == {"colour": "red"}
    removed = talk.ask("queue_delete", queue_name="q")
    assert (removed.status, removed.body) == (204, "Queue q removed.")
    absent = talk.ask("queue_get", queue_name="q")
    assert (absent.status, absent.body) == (200, {})


def test_an_answer_repeats_its_request(talk: Talk) -> None:
    answer = talk.ask("queue_create", queue_name="q", metadata={"a": 1})
    assert answer.request == {
        "action": "queue_create",
        "body": {"queue_name": "q", "metadata": {"a": 1}},
        "headers": talk.headers,
        "api": "v2",
    }


@pytest.mark.parametrize(
    "body", [239, {"key": "value"}, [1, 3], "text", "", None, 1.5, -(2**63), {"a": {"ü": [None]}}]
)
def test_a_message_is_posted_listed_and_fetched(talk: Talk, body: Any) -> None:
    first, second = post(talk, body, "x", ttl=300)
    message = {"id": first, "claim_id": None, "ttl": 300, "age": 0, "body": body}
    fetched = talk.ask("message_get", queue_name="q", message_id=first)
    assert fetched.status == 200
    shown = fetched.body["messages"]
    assert {**shown, "age": 0} == message
    several = talk.ask("message_get_many", queue_name="q", message_ids=[first, second, "gone"])
    assert [one["id"] for one in several.body["messages"]] == [first, second]
    assert talk.ask("message_list", queue_name="q").body == {"messages": []}
    listed = talk.ask("message_list", queue_name="q", echo=True, limit=1)
    assert [{**one, "age": 0} for one in listed.body["messages"]] == [message]
    after = talk.ask("message_list", queue_name="q", echo=True, marker=first)
    assert [one["id"] for one in after.body["messages"]] == [second]


def test_a_json_body_stays_the_bytes_that_were_sent(server: ServerProcess) -> None:
    text = '{"b":1.50,"a":1e2,"b":"\\u00e9"}'
    with Talk(server) as talk:
        frame = (
            '{"action":"message_post","headers":%s,"body":'
            '{"queue_name":"q","messages":[{"ttl":60,"body":%s}]}}'
        )
        talk.socket.send(frame % (json.dumps(talk.headers), text))
        assert talk.answer().status == 201
        talk.send(
            {
                "action": "message_list",
                "headers": talk.headers,
                "body": {"queue_name": "q", "echo": True},
            }
        )
        received = talk.socket.recv(20)
        assert isinstance(received, str)
        assert f'"body":{text}' in received


def test_what_is_absent_is_no_error_but_a_single_message(talk: Talk) -> None:
    assert talk.ask("message_get", queue_name="q", message_id="gone").status == 404
    many = talk.ask("message_get_many", queue_name="q", message_ids=["gone"])
    assert (many.status, many.body) == (200, {"messages": []})
    listed = talk.ask("message_list", queue_name="nowhere")
    assert (listed.status, listed.body) == (200, {"messages": []})
    assert talk.ask("message_delete", queue_name="q", message_id="gone").body == {}


def test_stats_are_404_where_there_is_no_queue(talk: Talk) -> None:
    none = {"claimed": 0, "free": 0, "total": 0}
    absent = talk.ask("queue_get_stats", queue_name="q")
    assert (absent.status, absent.body) == (404, {"messages": none})
    first, second = post(talk, 1, 2)
    counted = talk.ask("queue_get_stats", queue_name="q")
    assert counted.status == 200
    assert counted.body["messages"]["free"] == counted.body["messages"]["total"] == 2
    assert counted.body["messages"]["oldest"]["id"] == first
    assert counted.body["messages"]["newest"]["id"] == second


def test_a_claim_lives(talk: Talk) -> None:
    ids = post(talk, 1, 2, ttl=300)
    made = talk.ask("claim_create", queue_name="q", ttl=100, grace=60, limit=1)
    assert made.status == 201
    claim = made.body["claim_id"]
    assert [(one["id"], one["claim_id"]) for one in made.body["messages"]] == [(ids[0], claim)]
    read = talk.ask("claim_get", queue_name="q", claim_id=claim)
    assert (read.status, read.body["ttl"]) == (200, 100)
    assert read.body["messages"][0]["claim_id"] == claim
    renewed = talk.ask("claim_update", queue_name="q", claim_id=claim, ttl=60, grace=60)
    assert (renewed.status, renewed.body) == (204, f"Claim {claim} updated.")
    assert talk.ask("claim_update", queue_name="q", claim_id=claim).status == 204
    held = talk.ask("message_delete", queue_name="q", message_id=ids[0])
    assert held.status == 403
    done = talk.ask("message_delete", queue_name="q", message_id=ids[0], claim_id=claim)
    assert (done.status, done.body) == (204, {})
    released = talk.ask("claim_delete", queue_name="q", claim_id=claim)
    assert (released.status, released.body) == (204, f"Claim {claim} deleted.")
    for action in ("claim_get", "claim_update"):
        gone = talk.ask(action, queue_name="q", claim_id=claim)
        assert (gone.status, gone.body["error"]) == (404, f"Claim {claim} does not exist.")


def test_a_claim_of_nothing_has_no_id(talk: Talk) -> None:
    answer = talk.ask("claim_create", queue_name="q", ttl=60, grace=60)
    assert (answer.status, answer.body) == (204, {"claim_id": None})


def test_messages_are_popped_and_deleted_together(talk: Talk) -> None:
    first, second, third = post(talk, 1, 2, 3)
    popped = talk.ask("message_delete_many", queue_name="q", pop=1)
    assert popped.status == 200
    assert [one["id"] for one in popped.body["messages"]] == [first]
    gone = talk.ask("message_delete_many", queue_name="q", message_ids=[second, third])
    assert (gone.status, gone.body) == (204, {})
    wrongs: list[dict[str, Any]] = [
        {},
        {"pop": 1, "message_ids": [first]},
        {"message_ids": []},
        {"pop": 21},
    ]
    for wrong in wrongs:
        assert talk.ask("message_delete_many", queue_name="q", **wrong).status == 400
    assert talk.ask("message_list", queue_name="q", echo=True).body == {"messages": []}


def test_a_purge_leaves_nothing(talk: Talk) -> None:
    post(talk, 1, 2)
    assert talk.ask("queue_purge", queue_name="q", resource_types=["subscriptions"]).status == 204
    assert talk.ask("queue_get_stats", queue_name="q").body["messages"]["total"] == 2
    purged = talk.ask("queue_purge", queue_name="q")
    assert (purged.status, purged.body) == (204, {})
    assert talk.ask("queue_get_stats", queue_name="q").body["messages"]["total"] == 0


def test_a_webhook_is_subscribed_listed_read_and_removed(talk: Talk) -> None:
    made = talk.ask(
        "subscription_create", queue_name="q", subscriber="http://example.org/", ttl=600
    )
    assert (made.status, made.body["message"]) == (201, "Subscription q created.")
    known = made.body["subscription_id"]
    shown = talk.ask("subscription_get", queue_name="q", subscription_id=known)
    assert (shown.status, shown.body["subscriber"]) == (200, "http://example.org/")
    listed = talk.ask("subscription_list", queue_name="q")
    assert [one["id"] for one in listed.body["subscriptions"]] == [known]
    assert set(listed.body) == {"subscriptions"}
    gone = talk.ask("subscription_delete", queue_name="q", subscription_id=known)
    assert (gone.status, gone.body) == (204, f"Subscription {known} removed.")
    assert talk.ask("subscription_get", queue_name="q", subscription_id=known).status == 404


def test_the_service_tells_of_itself(talk: Talk) -> None:
    assert talk.ask("ping_node").status == 204
    assert "rel/queues" in talk.ask("get_home_doc").body["resources"]
    assert talk.ask("check_node_health").body["storage_reachable"] is True


def test_pools_and_flavors_are_made_listed_changed_and_removed() -> None:
    env = {"ZAQAR_LITE_POOLING": "true"}
    with ServerProcess("memory://", "--admin-mode", env=env) as server, Talk(server) as talk:
        made = talk.ask("pool_create", pool_name="p", uri="memory://", weight=10)
        assert (made.status, made.body) == (201, "Pool p created.")
        changed = talk.ask("pool_update", pool_name="p", weight=5)
        assert (changed.status, changed.body["weight"]) == (200, 5)
        assert talk.ask("pool_get", pool_name="p").body["weight"] == 5
        assert [one["name"] for one in talk.ask("pool_list").body["pools"]] == ["p"]
        assert talk.ask("pool_create", pool_name="q").status == 400
        made = talk.ask("flavor_create", flavor_name="f", pool_list=["p"])
        assert (made.status, made.body) == (201, "Flavor f created.")
        assert talk.ask("flavor_get", flavor_name="f").body["pool_list"] == ["p"]
        assert talk.ask("flavor_update", flavor_name="f", pool_list=["nowhere"]).status == 400
        assert [one["name"] for one in talk.ask("flavor_list").body["flavors"]] == ["f"]
        assert talk.ask("flavor_delete", flavor_name="f").body == "Flavor f removed."
        assert talk.ask("pool_delete", pool_name="p").body == "Pool p removed."
        assert talk.ask("pool_get", pool_name="p").status == 404


def test_what_this_server_has_not_is_not_found(talk: Talk) -> None:
    assert talk.ask("pool_list").status == 404


def bad_request(answer: Answer) -> str:
    assert answer.status == 400
    assert answer.body["error"] is None
    text: str = answer.body["exception"]
    return text


def test_a_field_of_a_message_is_named_as_zaqar_does(talk: Talk) -> None:
    for message, told in (
        ({"ttl": 60}, 'Bad request. Missing "body" field.'),
        ({"ttl": "60", "body": 1}, 'Bad request. The value of the "ttl" field must be a int.'),
    ):
        answer = talk.ask("message_post", queue_name="q", messages=[{"body": 1}, message])
        assert bad_request(answer) == told


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("message_post", {"queue_name": "q", "messages": [{"body": 1, "ttl": 59}]}),
        ("message_post", {"queue_name": "q", "messages": [{"body": "x" * 262_144}]}),
        ("message_list", {"queue_name": "q", "limit": 21}),
        ("message_get_many", {"queue_name": "q", "message_ids": ["x"] * 21}),
        ("claim_create", {"queue_name": "q", "ttl": 59, "grace": 60}),
        ("claim_create", {"queue_name": "q", "limit": 0}),
        ("queue_create", {"queue_name": "q", "metadata": {"_max_messages_post_size": -1}}),
        ("queue_create", {"queue_name": "a/messages"}),
        ("queue_create", {"queue_name": "v" * 65}),
        ("queue_create", {"queue_name": ""}),
        ("queue_delete", {"queue_name": "nœme"}),
    ],
)
def test_a_rule_is_that_of_http(talk: Talk, action: str, body: dict[str, Any]) -> None:
    assert bad_request(talk.ask(action, **body))


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("queue_get", {}),
        ("queue_get", {"queue_name": 1}),
        ("queue_list", {"limit": "1"}),
        ("queue_list", {"limit": True}),
        ("message_post", {"queue_name": "q"}),
        ("message_post", {"queue_name": "q", "messages": None}),
        ("message_post", {"queue_name": "q", "messages": "[]"}),
        ("message_get_many", {"queue_name": "q", "message_ids": []}),
        ("message_get_many", {"queue_name": "q", "message_ids": [""]}),
        ("message_list", {"queue_name": "q", "echo": "true"}),
        ("claim_update", {"queue_name": "q"}),
        ("queue_create", {"queue_name": "q", "metadata": [1]}),
    ],
)
def test_a_body_that_does_not_fit_is_told_so(talk: Talk, action: str, body: dict[str, Any]) -> None:
    answer = talk.ask(action, **body)
    assert (answer.status, answer.body) == (400, {"error": "Schema validation failed."})


@pytest.mark.parametrize("wrong", [None, 1, "", "0xdeadbeef", "not a uuid"])
def test_a_client_id_is_checked(talk: Talk, wrong: Any) -> None:
    answer = talk.ask("queue_list", {"Client-ID": wrong})
    assert answer.status == 400


def test_a_comma_in_an_id_is_one_id(talk: Talk) -> None:
    first, second = post(talk, 1, 2)
    found = talk.ask("message_get_many", queue_name="q", message_ids=[f"{first},{second}"])
    assert found.body == {"messages": []}


def test_projects_do_not_see_each_other(server: ServerProcess) -> None:
    with Talk(server) as one, Talk(server) as other:
        (message,) = post(one, 1)
        assert other.ask("message_get", queue_name="q", message_id=message).status == 404
        same = other.ask(
            "message_get", {"X-Project-ID": one.project}, queue_name="q", message_id=message
        )
        assert same.status == 200


def test_http_and_frames_see_the_same_queue(server: ServerProcess) -> None:
    with Talk(server) as talk:
        headers = {"Client-ID": uuid.uuid4().hex, "X-Project-ID": talk.project}
        url = f"{server.url}/v2/queues/q/messages"
        httpx.post(url, headers=headers, json={"messages": [{"body": "by HTTP"}]})
        (claimed,) = talk.ask("claim_create", queue_name="q").body["messages"]
        assert claimed["body"] == "by HTTP"
        held = httpx.delete(f"{url}/{claimed['id']}", headers=headers)
        assert held.status_code == 403
