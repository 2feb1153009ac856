"""Quotas: what a project may have, and how that is set, shown and followed."""

import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import PROJECT, Api, MakeApi, bearer
from tests.api.sockets import Raw, request
from tests.server import ServerProcess
from tests.services import RedisServer
from tests.waiting import until
from zaqar_lite.domain.identity import DELIVERIES_PROJECT

pytestmark = pytest.mark.anyio
NAMES = {
    *("queues", "messages", "bytes", "subscriptions", "waiters", "connections"),
    *("read_requests", "read_bytes", "write_requests", "write_bytes"),
    *("manage_requests", "manage_bytes"),
}


def is_full(answer: Any) -> bool:
    """Whether an answer says that a quota is reached, and not to come back soon."""
    told = answer.status_code == 403 and answer.json()["title"] == "Quota reached"
    return told and "retry-after" not in answer.headers


async def usage(api: Api) -> dict[str, int | None]:
    answer = await api.expect(200, "GET", "/v2/quota")
    shown: dict[str, int | None] = answer.json()["usage"]
    return shown


async def test_nothing_is_bounded_by_default(api: Api) -> None:
    shown = (await api.call("GET", "/v2/quota")).json()
    assert shown["project"] == "demo"
    assert shown["quotas"] == dict.fromkeys(NAMES)
    assert shown["usage"] == dict.fromkeys(shown["usage"], 0)
    await api.expect(404, "GET", "/v2/quotas/demo")


@pytest.mark.parametrize(
    ("quota", "bodies", "too_many"),
    [
        ({"messages": 5}, [range(4), [5]], [1, 1]),
        ({"bytes": 1_000}, [["x" * 898], ["x" * 98]], ["x" * 200]),  # and its quotes
    ],
)
async def test_messages_are_refused_where_they_do_not_fit(
    make_api: MakeApi, quota: dict[str, int], bodies: Any, too_many: list[Any]
) -> None:
    def of(*found: Any) -> dict[str, Any]:
        return {"messages": [{"body": body} for body in found]}

    async with make_api(quotas=quota) as api:
        await api.expect(201, "POST", "messages", of(*bodies[0]))
        assert is_full(await api.call("POST", "messages", of(*too_many)))
        await api.expect(201, "POST", "messages", of(*bodies[1]))
        assert is_full(await api.call("POST", "messages", of(1)))
        assert (await usage(api)).items() >= quota.items()
        await api.expect(201, "POST", "messages", of(1), X_Project_ID="b")


async def test_a_repeated_post_is_answered_as_the_first_was_where_nothing_fits(
    make_api: MakeApi,
) -> None:
    whole = {"messages": [{"body": 1}, {"body": 2}]}
    keyed = {"messages": [{"body": 3, "idempotency_key": "k"}]}

    async with make_api(quotas={"messages": 3}) as api:
        first = await api.call("POST", "messages", whole, Idempotency_Key="whole")
        second = await api.call("POST", "messages", keyed)
        assert first.status_code == second.status_code == 201
        for _ in range(2):
            again = await api.expect(201, "POST", "messages", whole, Idempotency_Key="whole")
            assert again.json()["resources"] == first.json()["resources"]
        again = await api.call("POST", "messages", keyed)
        assert (again.status_code, again.json()["resources"]) == (201, second.json()["resources"])
        await api.expect(409, "POST", "messages", keyed, Idempotency_Key="whole")
        for document, key in ((whole, "another"), ({"messages": [{"body": 3}]}, None)):
            named = {} if key is None else {"Idempotency_Key": key}
            assert is_full(await api.call("POST", "messages", document, **named))
        mixed = {"messages": [*keyed["messages"], {"body": 4, "idempotency_key": "new"}]}
        assert is_full(await api.call("POST", "messages", mixed))
        assert (await usage(api))["messages"] == 3


async def test_requests_that_wait_are_bounded(make_api: MakeApi) -> None:
    async with make_api(quotas={"waiters": 1}) as api:
        await api.post({"body": 1})
        await api.claim()
        path = "claims?wait=20"
        waiting = asyncio.create_task(api.call("POST", path))
        await until(lambda: usage(api), lambda used: used["waiters"] == 1)
        assert is_full(await api.call("POST", path))
        await api.post({"body": 2})
        assert (await waiting).status_code == 201


async def test_processes_on_one_store_have_a_quota_of_waiters_together(
    make_api: MakeApi, redis_server: RedisServer
) -> None:
    """Connections are counted by the same leases."""
    settings = {"store": redis_server.url, "quotas": {"waiters": 1}}
    async with make_api(**settings) as one, make_api(**settings) as two:
        waiting = asyncio.create_task(one.call("POST", "claims?wait=20"))
        await until(lambda: usage(two), lambda used: used["waiters"] == 1)
        assert is_full(await two.call("POST", "claims?wait=20"))
        await one.post({"body": 1})
        assert (await waiting).status_code == 201


def test_a_connection_belongs_to_the_project_that_it_served_last() -> None:
    env = {"ZAQAR_LITE_QUOTAS__CONNECTIONS": "1"}
    path = "/v2/queues"
    other = request("GET", path, headers={"X-Project-ID": "other"})
    with ServerProcess("memory://", env=env) as server:
        with Raw(server) as first, Raw(server) as second:
            for _ in range(2):
                first.send(request("GET", path))
                assert first.answer().status == 200
                second.send(request("GET", path))
                full = second.answer()
                assert (full.status, full.json()["title"]) == (403, "Quota reached")
            first.send(other)
            assert first.answer().status == 200
            second.send(request("GET", path))
            assert second.answer().status == 200
        answers = []
        for _ in range(100):  # until the server has seen that they are closed
            with Raw(server) as again:
                again.send(request("GET", path))
                answers.append(again.answer().status)
            if answers[-1] == 200:
                break
        assert answers[-1] == 200


def test_connections_that_end_before_they_are_counted_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "admin.key"
    env = {
        "ZAQAR_LITE_AUTH": "keys",
        "ZAQAR_LITE_ADMIN_KEY_FILE": str(file),
        "ZAQAR_LITE_QUOTAS__CONNECTIONS": "100",
    }
    document = json.dumps({"project": PROJECT, "grants": ["*:*"]}).encode()
    with (
        ServerProcess("memory://", env=env).start(ready=401) as server,
        Raw(server) as first,
    ):
        operator = {"Authorization": f"Bearer {file.read_text().strip()}"}
        for _ in range(20):
            made = first.call("POST", "/v2/keys", document, **operator).json()["key"]
            with Raw(server) as other:  # it ends while the key is looked up
                own = {"Authorization": f"Bearer {made}"}
                other.send(request("GET", "/v2/queues", headers=own))
                reset = struct.pack("ii", 1, 0)
                other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        for _ in range(100):  # until the server has seen that they are closed
            usage = first.call("GET", "/v2/quota", b"", **operator).json()["usage"]
            if usage["connections"] == 1:
                break
        assert usage["connections"] == 1


async def test_who_is_too_fast_is_told_when_to_come_back(make_api: MakeApi) -> None:
    async with make_api(quotas={"write_requests": 1, "read_bytes": 100}) as api:
        await api.post({"body": 1})
        await api.post({"body": "x" * 400})
        refused = await api.call("POST", "messages", {"messages": [{"body": 1}]})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        await api.expect(201, "PUT", "/v2/queues/other")
        await api.expect(204, "GET", "/v2/ping")
        await api.post({"body": 1}, X_Project_ID="other")
        await api.browse()
        refused = await api.expect(429, "GET", "messages")
        assert int(refused.headers["retry-after"]) >= 3
        await api.expect(429, "POST", "claims")


async def test_requests_of_nobody_use_up_nothing(make_api: MakeApi) -> None:
    async with make_api(auth="keys", quotas={"manage_requests": 2}) as api:
        for _ in range(20):
            await api.expect(401, "PUT", "/v2/queues/a")
        operator = bearer(api.operator)
        for n in range(4):
            await api.expect(201, "PUT", f"/v2/queues/{n}", **operator)
        await api.expect(429, "PUT", "/v2/queues/b", **operator)


async def test_a_project_gets_quotas_of_its_own(make_api: MakeApi) -> None:
    async with make_api(quotas={"queues": 1, "messages": 9}, admin_mode=True) as api:
        path = "/v2/quotas/demo"
        answer = await api.expect(200, "PUT", path, {"queues": 2, "messages": None})
        shown = answer.json()
        assert shown["own"] == {"queues": 2, "messages": None}
        assert (shown["quotas"]["queues"], shown["quotas"]["messages"]) == (2, None)
        for name, status in (("a", 201), ("b", 201), ("c", 403)):
            assert (await api.call("PUT", f"/v2/queues/{name}")).status_code == status
        await api.call("PUT", path, {"bytes": 7})
        shown = (await api.call("GET", path)).json()
        assert (shown["own"], shown["quotas"]["queues"]) == ({"bytes": 7}, 1)
        await api.expect(204, "DELETE", path)
        await api.expect(204, "DELETE", path)
        shown = (await api.call("GET", path)).json()
        assert (shown["own"], shown["quotas"]["bytes"]) == ({}, None)


async def test_a_project_that_can_not_be_has_no_quotas(make_api: MakeApi) -> None:
    async with make_api(admin_mode=True) as api:
        for method in ("GET", "PUT", "DELETE"):
            for project in ("p" * 257, DELIVERIES_PROJECT):
                path = f"/v2/quotas/{project}"
                await api.expect(400, method, path, {})
        path = "/v2/quotas/projekt-%C3%A4"
        assert (await api.call("PUT", path, {"queues": 1})).json()["project"] == "projekt-ä"
