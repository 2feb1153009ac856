"""Every route with every kind of credential: what is asked of whom, generated from the table.

A route that is new is in here by itself: who has not its verb must be denied.
"""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api import test_tokens as tokens
from tests.api.conftest import EVERY_ROUTE, Api, MakeApi, signed_by
from tests.keystone import Keystone
from zaqar_lite.api.request import Route
from zaqar_lite.domain.identity import Verb
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

pytestmark = pytest.mark.anyio
VERBS = [verb.value for verb in Verb]
GIVE_AWAY = {
    "create_subscription",
    "update_subscription",
    "share_queue",
    "topic_create_subscription",
    "topic_update_subscription",
    "share_topic",
}
"""They need, beside their verb, the rights that they give away: tests/api/test_keys.py."""
OPERATORS_ONLY = {
    "health",
    "metrics",
    "queue_metrics",
    "show_quotas",
    "set_quotas",
    "reset_quotas",
    "list_pools",
    "show_pool",
    "create_pool",
    "update_pool",
    "delete_pool",
    "drain_pool",
    "show_pool_drain",
    "create_flavor",
    "update_flavor",
    "delete_flavor",
}
VALUES = {
    "queue_name": "orders",
    "topic_name": "orders",
    "message_id": "000660de486f45bea066b4b29e904223",
    "claim_id": "5d81e6c6b0c14e6d9a3f2b7c8d9e0f1a",
    "subscription_id": "000660de486f45bea066b4b29e904223",
    "delivery_id": "000660de486f45bea066b4b29e904223",
    "key_id": "0123456789abcdef",
    "project_id": "p",
    "pool_name": "one",
    "flavor_name": "fast",
    "job_id": "000660de486f45bea066b4b29e904223",
    "act": "cancel",
    "schedule_name": "nightly",
}
DENIED = "Not authorized"


UPSTREAM = {
    "ping:get": "GET HEAD /v2/ping",
    "health:get": "GET /v2/health",
    "queues:get_all": "GET /v2/queues",
    "queues:create": "PUT /v2/queues/{queue_name}",
    "queues:get": "GET /v2/queues/{queue_name}",
    "queues:update": "PATCH /v2/queues/{queue_name}",
    "queues:delete": "DELETE /v2/queues/{queue_name}",
    "queues:stats": "GET /v2/queues/{queue_name}/stats",
    "queues:purge": "POST /v2/queues/{queue_name}/purge",
    "queues:share": "POST /v2/queues/{queue_name}/share",
    "messages:get_all": "GET /v2/queues/{queue_name}/messages",
    "messages:create": "POST /v2/queues/{queue_name}/messages",
    "messages:delete_all": "DELETE /v2/queues/{queue_name}/messages",
    "messages:get": "GET /v2/queues/{queue_name}/messages/{message_id}",
    "messages:delete": "DELETE /v2/queues/{queue_name}/messages/{message_id}",
    "claims:create": "POST /v2/queues/{queue_name}/claims",
    "claims:get": "GET /v2/queues/{queue_name}/claims/{claim_id}",
    "claims:update": "PATCH /v2/queues/{queue_name}/claims/{claim_id}",
    "claims:delete": "DELETE /v2/queues/{queue_name}/claims/{claim_id}",
    "subscription:get_all": "GET /v2/queues/{queue_name}/subscriptions",
    "subscription:create": "POST /v2/queues/{queue_name}/subscriptions",
    "subscription:get": "GET /v2/queues/{queue_name}/subscriptions/{subscription_id}",
    "subscription:update": "PATCH /v2/queues/{queue_name}/subscriptions/{subscription_id}",
    "subscription:delete": "DELETE /v2/queues/{queue_name}/subscriptions/{subscription_id}",
    "subscription:confirm": "PUT /v2/queues/{queue_name}/subscriptions/{subscription_id}/confirm",
    "pools:get_all": "GET /v2/pools",
    "pools:get": "GET /v2/pools/{pool_name}",
    "pools:create": "PUT /v2/pools/{pool_name}",
    "pools:update": "PATCH /v2/pools/{pool_name}",
    "pools:delete": "DELETE /v2/pools/{pool_name}",
    "flavors:get_all": "GET /v2/flavors",
    "flavors:get": "GET /v2/flavors/{flavor_name}",
    "flavors:create": "PUT /v2/flavors/{flavor_name}",
    "flavors:update": "PATCH /v2/flavors/{flavor_name}",
    "flavors:delete": "DELETE /v2/flavors/{flavor_name}",
}
"""Zaqar's rules by their routes; a route of ours has a rule of its own name."""
OPEN = {"versions", "home", "home_without_slash", "ping", "ping_head"}
OPEN |= {"livez", "livez_head", "readyz", "readyz_head"}


class Shot(NamedTuple):
    """A request of the matrix: its route, where it goes, and the verb that it needs."""

    route: Route
    path: str
    verb: Verb | None


def routes() -> tuple[Route, ...]:
    return create_app(load(environment={}, overrides={"store": "memory://", **EVERY_ROUTE})).routes


def shots() -> Iterator[Shot]:
    """Each route, and once more with each parameter that makes it a consumer's."""
    for route in routes():
        path = re.sub(r"{(\w+)}", lambda found: VALUES.get(found[1], "x"), route.template)
        if route.streams:
            path += "?seconds=0"
        yield Shot(route, path, route.access.verb)
        for parameter in sorted(route.access.consuming):
            yield Shot(route, f"{path}?{parameter}=1", Verb.RECEIVE)


SHOTS = list(shots())
GUARDED = [shot for shot in SHOTS if not shot.route.public]


class Matrix:
    """A server that knows keys, and the credentials to try."""

    def __init__(self, api: Api) -> None:
        del api.http.headers["X-Project-ID"]
        self.api = api
        self.secrets = [api.operator.rpartition("_")[2]]
        self.seen: list[str] = []

    async def make(self, *grants: str, project: str = "p", **more: Any) -> str:
        key = await self.api.make_key(*grants, project=project, **more)
        self.secrets.append(key.rpartition("_")[2])
        return key

    async def share(self, queue: str) -> dict[str, str]:
        """The headers of a signed URL of a queue, with all that it can have."""
        resources = ["messages", "claims", "subscriptions", "events"]
        document = {"paths": resources, "methods": ["GET", "POST", "PATCH", "DELETE", "PUT"]}
        key = await self.make("*:*")
        path = f"/v2/queues/{queue}/share"
        given = (await self._send("POST", path, key, document, {})).json()
        return {**signed_by(given), "X-Project-ID": "p"}

    async def revoke(self, queue: str) -> None:
        """End all signed URLs of a queue."""
        key = await self.make("manage:*")
        await self._send("DELETE", f"/v2/queues/{queue}/share", key, None, {})

    async def shoot(self, shot: Shot, key: str | None, **headers: str) -> httpx.Response:
        document: Any = {} if shot.route.method in ("POST", "PUT", "PATCH") else None
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._send(shot.route.method, shot.path, key, document, named)
        self.seen.append(f"{answer.headers} {answer.text}")
        assert answer.status_code < 500, (shot.path, answer.text)
        return answer

    async def _send(
        self, method: str, path: str, key: str | None, document: Any, headers: dict[str, str]
    ) -> httpx.Response:
        if key is not None:
            bearer = {"Authorization": f"Bearer {key}"}
            is_bearer = key.startswith("zq_") or key.count(".") == 2
            headers = {**headers, **(bearer if is_bearer else {"X-Auth-Token": key})}
        return await self.api.http.request(method, path, json=document, headers=headers)


def check_secrets(matrix: Matrix, caplog: pytest.LogCaptureFixture) -> None:
    """Look in the answers and in the log for what was given to the server."""
    told = "\n".join([*matrix.seen, caplog.text, *(str(vars(one)) for one in caplog.records)])
    for secret in (*matrix.secrets, EVERY_ROUTE["signed_url_secret_key"]):
        assert secret not in told


@pytest.fixture
async def matrix(make_api: MakeApi, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Matrix]:
    caplog.set_level(logging.DEBUG)
    async with make_api(**EVERY_ROUTE) as api:
        made = Matrix(api)
        yield made
    check_secrets(made, caplog)


def is_denied(answer: httpx.Response) -> bool:
    """Whether the policy refused; the answer to a HEAD has no body that says so."""
    head = answer.request.method == "HEAD"
    return answer.status_code == 403 and (head or answer.json()["title"] == DENIED)


def is_hidden(answer: httpx.Response) -> bool:
    """Whether there seems to be nothing: the answer to a signed URL that does not fit."""
    head = answer.request.method == "HEAD"
    return answer.status_code == 404 and (head or answer.json() == {"title": "404 Not Found"})


def test_every_route_names_a_verb_and_upstreams_rule_or_one_of_its_own() -> None:
    """Without a verb are those that everybody who is known may call, and what is public."""
    known = {
        f"{method} {words.split()[-1]}": rule
        for rule, words in UPSTREAM.items()
        for method in words.split()[:-1]
    }
    by_path = {f"{route.method} {route.template}": route for route in routes()}
    assert {route.name for route in by_path.values() if route.access.verb is None} == OPEN
    rules = []
    for path, route in by_path.items():
        rule = route.access.rule
        if path in ("GET /", "GET /v2", "GET /v2/") or path.endswith(("/livez", "/readyz")):
            assert rule is None
            continue
        assert rule is not None, path
        if rule.startswith(("messages:", "subscription:")) and "/topics/" in path:
            same = path.replace("/topics/{topic_name}", "/queues/{queue_name}")
            assert by_path[same].access.rule == rule, path
            continue
        assert known.get(path, rule) == rule, path
        assert path in known or rule not in UPSTREAM, path
        rules.append(rule)
    assert len(rules) == len(set(rules)) + 1  # both methods of /v2/ping have one


def test_every_variable_of_a_path_has_a_value() -> None:
    named = {name for route in routes() for name in re.findall(r"{(\w+)}", route.template)}
    assert named <= set(VALUES), "say what stands in the path"


@pytest.mark.parametrize("state", ["none", "wrong", "expired", "disabled", "forged headers"])
async def test_who_is_not_known_is_told_nothing(matrix: Matrix, state: str) -> None:
    headers: dict[str, str] = {"X_Project_ID": "p"}
    if state == "forged headers":
        headers |= {"X_Roles": "admin", "X_User_ID": "u", "X_Identity_Status": "Confirmed"}
        headers |= {"X_Is_Admin_Project": "True", "EXTRA_SPEC": "messagecode:x"}
        state = "none"
    key = await matrix.api.make_useless_key(state, project="p")
    for shot in GUARDED:
        answer = await matrix.shoot(shot, key, **headers)
        assert answer.status_code == 401, (shot.route.name, answer.text)
        if shot.route.method != "HEAD":
            assert answer.json()["error"]["code"] == 401


@pytest.mark.parametrize("verb", [*VERBS, "*"])
async def test_a_verb_opens_its_routes_and_no_other(matrix: Matrix, verb: str) -> None:
    key = await matrix.make(f"{verb}:*")
    for shot in GUARDED:
        answer = await matrix.shoot(shot, key)
        may = shot.verb is None or verb in (shot.verb.value, "*")
        may = may and shot.route.name not in OPERATORS_ONLY
        if not (may and shot.route.name in GIVE_AWAY):
            assert is_denied(answer) != may, (shot.route.name, shot.path, answer.text)
        assert answer.status_code != 401


async def test_grants_on_another_queue_open_nothing_here(matrix: Matrix) -> None:
    key = await matrix.make("*:others*")
    for shot in GUARDED:
        answer = await matrix.shoot(shot, key)
        assert is_denied(answer) == (shot.verb is not None), (shot.route.name, answer.text)


async def test_a_key_of_another_project_is_denied_here(matrix: Matrix) -> None:
    key = await matrix.make("*:*", project="other")
    for shot in GUARDED:
        assert is_denied(await matrix.shoot(shot, key, X_Project_ID="p")), shot.route.name


async def test_an_operator_may_do_everything(matrix: Matrix) -> None:
    for shot in SHOTS:
        answer = await matrix.shoot(shot, matrix.api.operator, X_Project_ID="p")
        assert answer.status_code != 401, shot.route.name
        assert not is_denied(answer), (shot.route.name, answer.text)


async def test_a_signed_url_opens_its_own_queue_alone(matrix: Matrix) -> None:
    other, own = await matrix.share("elsewhere"), await matrix.share("orders")
    for shot in GUARDED:
        answer = await matrix.shoot(shot, None, **other)
        assert is_hidden(answer), shot.path
        below = re.match(
            r"/v2/queues/orders/(messages|claims|subscriptions|events)(?![a-z])", shot.path
        )
        answer = await matrix.shoot(shot, None, **own)
        assert is_hidden(answer) == (below is None), (shot.route.name, answer.text)
        assert answer.status_code != 401
    await matrix.revoke("orders")
    for shot in GUARDED:
        answer = await matrix.shoot(shot, None, **own)
        assert is_hidden(answer), (shot.route.name, answer.text)


# The same with tokens of Keystone and of an issuer (JWT), and the roles reader, member, manager
# and admin.

RANKS = {"reader": 1, "member": 2, "manager": 3, "admin": 4}
NEEDED = {Verb.READ: 1, Verb.SEND: 2, Verb.RECEIVE: 2, Verb.MANAGE: 3, Verb.ADMIN: 4}


class Cloud(NamedTuple):
    """A server that knows keys, Keystone's tokens and those of an issuer."""

    matrix: Matrix
    keystone: Keystone

    def token(self, *roles: str, **more: Any) -> str:
        made = self.keystone.issue(*roles, **{"project": "p", **more})
        self.matrix.secrets.append(made)
        return made

    def jwt(self, *roles: str, **claims: Any) -> str:
        made = tokens.token(roles=list(roles), **claims)
        self.matrix.secrets.append(made)
        return made

    def of(self, kind: str, *roles: str, project: str = "p") -> str:
        if kind == "jwt":
            return self.jwt(*roles, project_id=project)
        return self.token(*roles, project=project)


@pytest.fixture
async def cloud(
    make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture, keystone: Keystone
) -> AsyncIterator[Cloud]:
    caplog.set_level(logging.DEBUG)
    known = tokens.settings(tokens.keys_file(tmp_path), keystone_url=keystone.url)
    options = {**known, **EVERY_ROUTE, "auth": "keys, jwt, keystone"}
    async with make_api(**options, role_defaults="secure") as api:
        made = Cloud(Matrix(api), keystone)
        yield made
    check_secrets(made.matrix, caplog)


@pytest.mark.parametrize("kind", ["keystone", "jwt"])
@pytest.mark.parametrize("role", [*RANKS, "auditor"])
async def test_a_role_opens_what_it_and_those_below_it_are_for(
    cloud: Cloud, role: str, kind: str
) -> None:
    token = cloud.of(kind, role)
    for shot in GUARDED:
        answer = await cloud.matrix.shoot(shot, token)
        may = shot.verb is None or RANKS.get(role, 0) >= NEEDED[shot.verb]
        if not (may and shot.route.name in OPERATORS_ONLY):
            assert is_denied(answer) != may, (shot.route.name, shot.path, answer.text)
        assert answer.status_code != 401


async def test_a_token_of_the_system_is_in_no_project(cloud: Cloud) -> None:
    token = cloud.token("admin", project=None)
    for shot in GUARDED:
        answer = await cloud.matrix.shoot(shot, token, X_Project_ID="p")
        is_no_projects = shot.route.plain and not shot.route.names_queue
        refused = answer.status_code == 400
        assert refused or is_no_projects, (shot.route.name, answer.text)
