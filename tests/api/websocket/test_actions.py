"""What each action answers: the same rules as over HTTP, in the form that Zaqar's frames have."""

import json
from typing import Any

import pytest

from tests.api.websocket.talk import Talk
from tests.server import ServerProcess


def post(talk: Talk, *bodies: Any, queue: str = "q", **more: Any) -> list[str]:
    answer = talk.ask(
        "message_post", queue_name=queue, messages=[{"body": body, **more} for body in bodies]
    )
    assert answer.status == 201, answer
    ids: list[str] = answer.body["message_ids"]
    return ids


ABSENT: dict[str, Any] = {"queue_name": "q", "message_id": "gone", "claim_id": "gone"}
NONE = {"messages": {"claimed": 0, "free": 0, "total": 0}}
ANSWERS: list[tuple[str, dict[str, Any], int, Any]] = [
    ("queue_get_stats", {}, 404, NONE),
    ("queue_create", {"metadata": {"colour": "red"}}, 201, "Queue q created."),
    ("queue_create", {}, 204, "Queue q created."),
    ("queue_get", {}, 200, {"colour": "red"}),
    ("queue_list", {"limit": 1}, 200, {"queues": [{"name": "q"}]}),
    ("claim_create", {}, 204, {"claim_id": None}),
    ("message_list", {"queue_name": "nowhere"}, 200, {"messages": []}),
    ("message_get_many", {"message_ids": ["gone"]}, 200, {"messages": []}),
    ("message_delete", {}, 204, {}),
    ("message_delete_many", {"message_ids": ["gone"]}, 204, {}),
    ("claim_get", {}, 404, "Claim gone does not exist."),
    ("claim_update", {}, 404, "Claim gone does not exist."),
    ("claim_delete", {}, 204, "Claim gone deleted."),
    ("subscription_delete", {"subscription_id": "gone"}, 204, "Subscription gone removed."),
    ("queue_purge", {}, 204, {}),
    ("queue_delete", {}, 204, "Queue q removed."),
    ("queue_get", {}, 200, {}),
    ("ping_node", {}, 204, {}),
    ("pool_list", {}, 404, None),
]
"""What Zaqar's own tests (tests/compat/test_zaqar.py) do not say: the words, and what is absent."""


def test_each_action_answers_in_its_own_words(talk: Talk) -> None:
    for action, body, status, words in ANSWERS:
        answer = talk.ask(action, **{**ABSENT, **body})
        found = answer.body.get("error", answer.body) if status == 404 else answer.body
        assert (answer.status, found) == (status, words), action
    post(talk, 1)
    claimed = talk.ask("claim_create", queue_name="q").body
    claim = claimed["claim_id"]
    assert [one["claim_id"] for one in claimed["messages"]] == [claim]
    renewed = talk.ask("claim_update", queue_name="q", claim_id=claim, ttl=60)
    assert (renewed.status, renewed.body) == (204, f"Claim {claim} updated.")
    made = talk.ask("subscription_create", queue_name="q", subscriber="http://example.org/")
    assert (made.status, made.body["message"]) == (201, "Subscription q created.")
    listed = talk.ask("subscription_list", queue_name="q").body["subscriptions"]
    assert [one["id"] for one in listed] == [made.body["subscription_id"]]
    talk.ask("queue_purge", queue_name="q", resource_types=["subscriptions"])
    assert talk.ask("subscription_list", queue_name="q").body == {"subscriptions": []}
    assert talk.ask("queue_get_stats", queue_name="q").body["messages"]["total"] == 1


def test_an_answer_repeats_its_request(talk: Talk) -> None:
    answer = talk.ask("queue_create", queue_name="q", metadata={"a": 1})
    assert answer.request == {
        "action": "queue_create",
        "body": {"queue_name": "q", "metadata": {"a": 1}},
        "headers": talk.headers,
        "api": "v2",
    }


def test_a_message_is_posted_listed_and_fetched(talk: Talk) -> None:
    bodies = [239, {"key": "value"}, [1], "text", "", None, 1.5, -(2**63), {"a": {"ü": [None]}}]
    for number, body in enumerate(bodies):
        queue: dict[str, Any] = {"queue_name": f"q-{number}"}
        first, second = post(talk, body, "x", queue=queue["queue_name"], ttl=300)
        message = {"id": first, "claim_id": None, "ttl": 300, "age": 0, "body": body}
        fetched = talk.ask("message_get", None, **queue, message_id=first)
        assert fetched.status == 200
        assert {**fetched.body["messages"], "age": 0} == message
        several = talk.ask("message_get_many", None, **queue, message_ids=[first, second, "gone"])
        assert [one["id"] for one in several.body["messages"]] == [first, second]
        joined = talk.ask("message_get_many", None, **queue, message_ids=[f"{first},{second}"])
        assert joined.body == {"messages": []}
        assert talk.ask("message_list", None, **queue).body == {"messages": []}
        listed = talk.ask("message_list", None, **queue, echo=True, limit=1)
        assert [{**one, "age": 0} for one in listed.body["messages"]] == [message]
        after = talk.ask("message_list", None, **queue, echo=True, marker=first)
        assert [one["id"] for one in after.body["messages"]] == [second]
        elsewhere = talk.ask("message_get", {"X-Project-ID": "other"}, **queue, message_id=first)
        assert elsewhere.status == 404


def test_a_json_body_stays_the_bytes_that_were_sent(server: ServerProcess) -> None:
    text = '{"b":1.50,"a":1e2,"b":"\\u00e9"}'
    with Talk(server) as talk:
        frame = {"action": "message_post", "headers": talk.headers}
        asked = {"queue_name": "q", "messages": [{"ttl": 60, "body": "?"}]}
        talk.socket.send(json.dumps({**frame, "body": asked}).replace('"?"', text))
        assert talk.answer().status == 201
        frame["action"] = "message_list"
        talk.send({**frame, "body": {"queue_name": "q", "echo": True}})
        received = talk.socket.recv(20)
        assert isinstance(received, str)
        assert f'"body":{text}' in received


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


def test_which_message_has_no_body_is_not_told(talk: Talk) -> None:
    for behind in (0, 10):
        messages = [*[{"body": 1}] * behind, {"ttl": 60}]
        answer = talk.ask("message_post", queue_name="q", messages=messages)
        told = {"exception": 'Bad request. Missing "body" field.', "error": None}
        assert (answer.status, answer.body) == (400, told)
