"""What each route asks of who calls it: upstream's policy rule, and the verb."""

import pytest

from zaqar_lite.domain.identity import Verb
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

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

PROBES = {"livez", "livez_head", "readyz", "readyz_head", "ping", "ping_head"}
OPEN = {"versions", "home", "home_without_slash", *PROBES}
"""The routes that everybody who is known may call, and what is public."""


@pytest.fixture(scope="module")
def routes() -> dict[str, tuple[str | None, Verb | None, str]]:
    settings = {"store": "memory://", "admin_mode": True, "pooling": True, "auth": "keys"}
    app = create_app(load(environment={}, overrides=settings))
    return {
        route.name: (route.access.rule, route.access.verb, f"{route.method} {route.template}")
        for route in app.routes
    }


def test_every_route_names_a_verb(routes: dict[str, tuple[str | None, Verb | None, str]]) -> None:
    assert {name for name, (_, verb, _) in routes.items() if verb is None} == OPEN


def test_every_route_has_upstreams_rule_or_one_of_its_own(
    routes: dict[str, tuple[str | None, Verb | None, str]],
) -> None:
    known = {
        f"{method} {words.split()[-1]}": rule
        for rule, words in UPSTREAM.items()
        for method in words.split()[:-1]
    }
    by_path = {path: rule for rule, _, path in routes.values()}
    rules = []
    for name, (rule, _, path) in routes.items():
        if path in ("GET /", "GET /v2", "GET /v2/") or path.endswith(("/livez", "/readyz")):
            assert rule is None
            continue
        assert rule is not None, name
        if rule.startswith(("messages:", "subscription:")) and "/topics/" in path:
            same = path.replace("/topics/{topic_name}", "/queues/{queue_name}")
            assert by_path[same] == rule, name
            continue
        assert known.get(path, rule) == rule, name
        assert path in known or rule not in UPSTREAM, name
        rules.append(rule)
    assert len(rules) == len(set(rules)) + 1  # both methods of /v2/ping have one
