"""Every action with every kind of credential: what is asked of whom, generated from the table.

An action that is new is in here by itself: who has not its verb must be denied.
"""

import itertools
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.api import test_tokens as tokens
from tests.api.test_matrix import GIVE_AWAY, OPERATORS_ONLY, VERBS
from tests.api.websocket.talk import Answer, Talk
from tests.keystone import Keystone
from tests.server import ServerProcess
from tests.services.process import free_port
from zaqar_lite.api.websocket.actions import ServedAction, SocketAction
from zaqar_lite.api.websocket.conversation import SocketHost
from zaqar_lite.domain.identity import Verb
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

OPERATORS_ONLY = OPERATORS_ONLY | {"check_node_health"}
NOT_AUTHENTIFIED = {"error": "Not authentified."}
VALUES: dict[str, Any] = {
    "text": "orders",
    "whole": 1,
    "flag": True,
    "texts": ["x"],
    "object": {},
    "list": [{"body": 1}],
}
CLOSED_TO_ALL = 403


class Shot(NamedTuple):
    """A frame of the matrix: its action, its body, and the verb that it needs."""

    action: SocketAction
    body: dict[str, Any]
    verb: Verb | None
    operators_only: bool


def shots() -> Iterator[Shot]:
    """Each action, and once more with each field that makes it a consumer's."""
    settings = {"store": "memory://", "auth": "keys", "admin_mode": True, "pooling": True}
    host = create_app(load(environment={}, overrides=settings)).sockets
    assert isinstance(host, SocketHost)
    for served in host.actions.values():
        assert served is not None, "an action without its route"
        yield from _shots(served)


def _shots(served: ServedAction) -> Iterator[Shot]:
    action, access = served.declared, served.route.access
    body = {field.name: VALUES[field.kind] for field in served.fields if field.required}
    special = served.route.name in OPERATORS_ONLY or action.name in OPERATORS_ONLY
    if action.listens:
        body["subscriber"] = "http://example.org/"
    if action.name != "message_delete_many":
        yield Shot(action, body, access.verb, special)
    for field in served.fields:
        if field.target in served.parameters & access.consuming:
            more = {**body, field.name: VALUES[field.kind]}
            yield Shot(action, more, Verb.RECEIVE, special)


SHOTS = list(shots())


class Guarded:
    """A server that knows keys, and makes them."""

    def __init__(self, server: ServerProcess, operator: str) -> None:
        self.server = server
        self.operator = operator

    def key(self, *grants: str, project: str = "p", **more: Any) -> str:
        document = {"project": project, "grants": list(grants), **more}
        made: str = self.call("POST", "/v2/keys", document).json()["key"]
        return made

    def disable(self, key: str) -> None:
        self.call("PATCH", f"/v2/keys/{key.split('_')[1]}", {"disabled": True})

    def call(self, method: str, path: str, document: Any, key: str = "") -> httpx.Response:
        headers = {"Client-ID": uuid.uuid4().hex, "Authorization": f"Bearer {key or self.operator}"}
        answer = httpx.request(method, f"{self.server.url}{path}", json=document, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer

    def talk(self) -> Talk:
        return Talk(self.server, project="p")

    def signed(self, queue: str) -> dict[str, Any]:
        """The headers of a signed URL of a queue, with all that it can have."""
        document = {
            "paths": ["messages", "claims", "subscriptions"],
            "methods": ["GET", "POST", "PATCH", "DELETE", "PUT"],
        }
        path = f"/v2/queues/{queue}/share"
        given = self.call("POST", path, document, self.key("*:*")).json()
        return {
            "URL-Signature": given["signature"],
            "URL-Expires": given["expires"],
            "URL-Methods": given["methods"],
            "URL-Paths": given["paths"],
            "X-Project-ID": "p",
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server that asks for a key, or for a token of an issuer."""
    folder = tmp_path_factory.mktemp("keys")
    file = folder / "admin.key"
    env = {
        "ZAQAR_LITE_JWT_ISSUER": tokens.ISSUER,
        "ZAQAR_LITE_JWT_AUDIENCE": "zaqar-lite",
        "ZAQAR_LITE_JWT_KEYS": str(tokens.keys_file(folder)),
        "ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "secret" * 6,
        "ZAQAR_LITE_MAX_FAILED_LOGINS": "1000000",
        "ZAQAR_LITE_POOLING": "true",
    }
    options = ("--auth", "keys,jwt", "--admin-mode", "--admin-key-file", str(file))
    with ServerProcess("memory://", *options, env=env).start(ready=401) as server:
        yield Guarded(server, file.read_text().strip())


def login(talk: Talk, key: str, **headers: str) -> Answer:
    sent = {"Client-ID": talk.headers["Client-ID"], "Authorization": f"Bearer {key}", **headers}
    talk.send({"action": "authenticate", "headers": sent})
    return talk.answer()


def fire(talk: Talk, shot: Shot) -> Answer:
    answer = talk.ask(shot.action.name, None, **shot.body)
    assert answer.status < 500, (shot, answer)
    return answer


def is_denied(answer: Answer) -> bool:
    return answer.status == CLOSED_TO_ALL and answer.body.get("error") == "Not authorized"


@pytest.mark.parametrize("binary", [False, True])
def test_a_login_is_answered_in_the_form_of_its_frame(guarded: Guarded, binary: bool) -> None:
    with Talk(guarded.server, project="p", binary=binary) as talk:
        wrong: list[Any] = [None, [], {}, {"X-Auth-Token": 1}, {"Authorization": ["Bearer x"]}]
        for headers in wrong:
            talk.send({"action": "authenticate", "headers": headers})
            answer = talk.answer()
            assert (answer.status, answer.body) == (400, {"error": "Schema validation failed."})
        key = guarded.key("*:*")
        answer = login(talk, key)
        assert (answer.status, answer.body) == (200, {"message": "Authentified."})
        assert answer.request["action"] == "authenticate"
        assert "Bearer" not in str(answer.request)
        proofs = dict.fromkeys(("Authorization", "X-Auth-Token", "X-Service-Token"), "Bearer x")
        assert talk.ask("queue_list", proofs).request["headers"] == talk.headers
        # The project of a key need not be named.
        talk.send({"action": "queue_list", "headers": {"Client-ID": talk.headers["Client-ID"]}})
        assert talk.answer().status == 200
        guarded.disable(key)
        guarded.server.wait_for(lambda: talk.ask("queue_list").status == 403)
        assert login(talk, guarded.key("*:*")).status == 200
        assert talk.ask("queue_list").status == 200


@pytest.mark.parametrize("state", ["none", "wrong", "disabled", "expired", "other project"])
def test_who_is_not_known_is_told_nothing(guarded: Guarded, state: str) -> None:
    with guarded.talk() as talk:
        key = guarded.key("*:*", expires=1 if state == "expired" else 3_600)
        if state == "disabled":
            guarded.disable(key)
        elif state == "wrong":
            key = key[:-1] + ("0" if key[-1] != "0" else "1")
        elif state == "expired":
            time.sleep(1.1)  # the clock that counts is the server's
        if state != "none":
            project = {"X-Project-ID": "q"} if state == "other project" else {}
            answer = login(talk, key, **project)
            assert answer.status == (403 if project else 401)
            assert answer.body == {"error": "Authentication failed."}
        for shot in SHOTS:
            answer = fire(talk, shot)
            assert (answer.status, answer.body) == (403, NOT_AUTHENTIFIED), shot


@pytest.mark.parametrize("kind", ["key", "jwt"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_opens_its_actions_and_no_other(guarded: Guarded, verb: str, kind: str) -> None:
    grants = [f"{verb}:*"]
    with guarded.talk() as talk:
        own = guarded.key(*grants) if kind == "key" else tokens.token(grants=grants)
        assert login(talk, own).status == 200
        for shot in SHOTS:
            answer = fire(talk, shot)
            may = shot.verb is None or shot.verb.value == verb
            may = may and not shot.operators_only
            if not (may and shot.action.route in GIVE_AWAY):
                assert is_denied(answer) != may, (shot, answer)


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_connection_that_only_listens_ends_with_its_login(guarded: Guarded, end: str) -> None:
    with guarded.talk() as talk:
        key = guarded.key("*:*", expires=2 if end == "expired" else 600)
        assert login(talk, key).status == 200
        assert talk.ask("subscription_create", queue_name="news", ttl=300).status == 201
        if end == "revoked":
            guarded.disable(key)
        assert talk.end() == (4003, f"Authentication {end}.")


def test_a_later_login_counts_in_place_of_the_one_before(guarded: Guarded) -> None:
    with guarded.talk() as talk:
        assert login(talk, guarded.key("*:*", expires=2)).status == 200
        assert login(talk, guarded.key("read:*")).status == 200
        with pytest.raises(TimeoutError):
            talk.read(2.5)
        assert talk.ask("queue_list").status == 200
        assert is_denied(talk.ask("queue_create", queue_name="q"))
        assert login(talk, "zq_nothing").status == 401
        assert talk.ask("queue_list").status == 200


def test_a_signed_url_opens_the_messages_of_its_own_queue_alone(guarded: Guarded) -> None:
    own, other = guarded.signed("orders"), guarded.signed("elsewhere")
    with guarded.talk() as talk:
        for shot in SHOTS:
            answer = talk.ask(shot.action.name, other, **shot.body)
            assert (answer.status, answer.body) == (403, NOT_AUTHENTIFIED), shot
            answer = talk.ask(shot.action.name, own, **shot.body)
            assert (answer.body == NOT_AUTHENTIFIED) != shot.action.name.startswith("message_")
        forged = {**own, "URL-Paths": ["/v2/queues/elsewhere/messages"]}
        assert talk.ask("message_list", forged, queue_name="elsewhere").status == 403
        in_project = {**own, "X-Project-ID": "other"}
        assert talk.ask("message_list", in_project, queue_name="orders").status == 403
        guarded.call("DELETE", "/v2/queues/orders/share", None, guarded.key("manage:*"))
        assert talk.ask("message_list", own, queue_name="orders").status == 403


def test_an_operator_may_do_everything(guarded: Guarded) -> None:
    with guarded.talk() as talk:
        assert login(talk, guarded.operator, **{"X-Project-ID": "p"}).status == 200
        for shot in SHOTS:
            assert not is_denied(fire(talk, shot)), shot


def test_a_token_of_keystone_opens_what_its_role_does() -> None:
    env = {"ZAQAR_LITE_ROLE_DEFAULTS": "secure"}
    with Keystone() as keystone:
        options = ("--auth", "keystone", "--keystone-url", keystone.url)
        with ServerProcess("memory://", *options, env=env).start(ready=401) as server:
            with Talk(server, project="p") as talk:
                assert talk.ask("queue_list").body == NOT_AUTHENTIFIED
                token = keystone.issue("reader", project="p")
                sent = {"X-Auth-Token": token, "X-Project-ID": "p"}
                talk.send({"action": "authenticate", "headers": sent})
                assert talk.answer().status == 200
                assert talk.ask("queue_list").status == 200
                assert is_denied(talk.ask("queue_create", queue_name="q"))
                short = keystone.issue("manager", project="p", lives=3)
                talk.send({"action": "authenticate", "headers": {"X-Auth-Token": short}})
                assert talk.answer().status == 200
                assert talk.ask("queue_create", queue_name="q").status == 201
                assert talk.end() == (4003, "Authentication expired.")


def test_who_never_says_who_it_is_is_sent_away() -> None:
    env = {
        "ZAQAR_LITE_AUTH": "keys",
        "ZAQAR_LITE_REQUEST_TIMEOUT": "1",
    }
    with ServerProcess("memory://", env=env).start(ready=401) as server, Talk(server) as talk:
        assert (talk.end() or ())[:1] == (1008,)


def test_a_project_has_as_many_connections_as_its_quota_says() -> None:
    with ServerProcess("memory://", env={"ZAQAR_LITE_QUOTAS__CONNECTIONS": "2"}) as server:
        with Talk(server) as one, Talk(server, project=one.project) as other:
            assert one.ask("queue_list").status == other.ask("queue_list").status == 200
            with Talk(server, project=one.project) as third:
                answer = third.ask("queue_list")
                assert (answer.status, answer.body["error"]) == (403, "Quota reached")
                other.socket.close()
                server.wait_for(lambda: third.ask("queue_list").status == 200)


def test_a_login_counts_for_its_project_before_any_other_frame(tmp_path: Path) -> None:
    admin = tmp_path / "admin.key"
    options = ("--auth", "keys", "--admin-key-file", str(admin))
    env = {"ZAQAR_LITE_QUOTAS__CONNECTIONS": "1"}
    with ServerProcess("memory://", *options, env=env).start(ready=401) as server:
        guarded = Guarded(server, admin.read_text().strip())
        key = guarded.key("*:*")
        with guarded.talk() as one, guarded.talk() as other:
            answers = [login(talk, key).status for talk in (one, other, one)]
        assert answers == [200, 403, 200]


def test_what_a_gateway_says_binds_a_connection() -> None:
    env = {"ZAQAR_LITE_GATEWAY_SECRET": "s" * 32}
    with ServerProcess("memory://", env=env).start(ready=403) as server:
        through = {"X-Gateway-Secret": "s" * 32, "X-Project-ID": "p"}
        with Talk(server, project="p", additional_headers=through) as talk:
            assert talk.ask("queue_list").status == 200
            other = talk.ask("queue_list", {"X-Project-ID": "other"})
            assert (other.status, other.body) == (403, NOT_AUTHENTIFIED)
        for missing in through:
            headers = {name: text for name, text in through.items() if name != missing}
            with pytest.raises(Exception, match="HTTP 40"):
                with Talk(server, additional_headers=headers):
                    pass


def test_no_path_and_no_signature_opens_a_socket_past_the_gateway() -> None:
    port = free_port()
    env = {"ZAQAR_LITE_GATEWAY_SECRET": "s" * 32, "ZAQAR_LITE_WEBSOCKET_PORT": str(port)}
    with ServerProcess("memory://", env=env).start(ready=403) as server:
        named = {"X-Project-ID": "p"}
        signed = {**named, "URL-Signature": "0" * 64}
        places: list[dict[str, Any]] = [{"path": "/", "port": port}, {"port": port}, {}]
        for place, headers in itertools.product(places, (named, signed)):
            with (
                pytest.raises(InvalidStatus, match="403"),
                Talk(server, project="p", additional_headers=headers, **place),
            ):
                pass
            through = {**headers, "X-Gateway-Secret": "s" * 32}
            with Talk(server, project="p", additional_headers=through, **place) as talk:
                assert talk.ask("queue_list").status == 200
