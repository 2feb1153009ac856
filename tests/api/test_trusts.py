"""Trusts of Keystone: each ends with its subscription, whatever ended that and who was away."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, WriteCloud
from tests.keystone import Keystone, User, account_at
from tests.push.receiver import Receiver
from tests.waiting import until
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.service.identity import trusts
from zaqar_lite.storage.sql.records import SqlManagementStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Support for InfluxDB"),  # openstacksdk's own
]
HOOK = "trust+http://receiver.example:8080/hook"


@pytest.fixture(autouse=True)
def account(keystone: Keystone, write_cloud: WriteCloud) -> None:
    write_cloud(account_at(keystone.url, "secret"))


def settings(keystone: Keystone, **more: Any) -> dict[str, Any]:
    given = {"auth": "keystone", "keystone_url": keystone.url, "keystone_cloud": "ours"}
    return {**given, "delivery_allowed": "127.0.0.0/8", **more}


async def subscribe(api: Api, keystone: Keystone, subscriber: str = HOOK, status: int = 201) -> str:
    api.http.headers["X-Auth-Token"] = keystone.issue("member")
    document = {"subscriber": subscriber, "ttl": 3600}
    made = await api.call("POST", "subscriptions", document)
    assert made.status_code == status, made.text
    return str(made.json().get("subscription_id", ""))


async def left(keystone: Keystone, count: int) -> None:
    """Wait until there are so many trusts."""
    await until(lambda: keystone.state.trusts, lambda trusts: len(trusts) == count)


@pytest.mark.parametrize(
    ("end", "document"),
    [
        ("DELETE {own}", None),
        ("POST purge", {"resource_types": ["subscriptions"]}),
        ("PATCH {own}", {"subscriber": "http://receiver.example:8080/"}),
        ("PATCH {own}", {"ttl": 7_200}),  # it needs another one
    ],
)
async def test_a_trust_ends_with_its_subscription(
    make_api: MakeApi, keystone: Keystone, caplog: pytest.LogCaptureFixture, end: str, document: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    async with make_api(**settings(keystone, quotas={"subscriptions": 1})) as api:
        made = await subscribe(api, keystone)
        (trust,) = keystone.state.trusts
        await subscribe(api, keystone, f"{HOOK}/more", status=403)  # which leaves none
        await left(keystone, 1)
        method, path = end.format(own=f"subscriptions/{made}").split(" ")
        await api.expect(204, method, path, document)
        await left(keystone, int("ttl" in (document or {})))
        assert trust not in keystone.state.trusts
    told = "\n".join([caplog.text, *(str(vars(one)) for one in caplog.records)])
    assert trust not in told


@pytest.mark.parametrize(
    "garbled", [{"trust": {}}, {"trust": {"id": None}}, {}, [], "made", {"trust": None}]
)
async def test_a_trust_whose_id_keystone_does_not_tell_is_no_subscription(
    make_api: MakeApi, keystone: Keystone, garbled: Any
) -> None:
    async with make_api(**settings(keystone)) as api:
        keystone.state.garbled_trust = garbled
        await subscribe(api, keystone, status=503)
        assert (await api.call("GET", "subscriptions")).json()["subscriptions"] == []


async def test_a_trust_that_can_not_be_noted_is_ended_at_once(
    make_api: MakeApi, keystone: Keystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = SqlManagementStore.put_record

    async def fail(store: SqlManagementStore, kind: str, *args: Any, **more: Any) -> Any:
        if kind == trusts.KIND:
            raise Unavailable("The store is away.")
        return await put(store, kind, *args, **more)

    async with make_api(**settings(keystone)) as api:
        monkeypatch.setattr(SqlManagementStore, "put_record", fail)
        await subscribe(api, keystone, status=503)
        assert keystone.state.trusts == {}


@pytest.mark.parametrize("is_known", [True, False], ids=["told", "found"])
async def test_a_trust_that_keystone_fails_at_keeps_no_other(
    make_api: MakeApi, keystone: Keystone, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(trusts, "LOOK_EVERY", 0.05)
    if not is_known:
        monkeypatch.setattr(trusts, "_MAX_LEFT", 0)
    async with make_api(**settings(keystone)) as api:
        made = [await subscribe(api, keystone, f"{HOOK}/{n}") for n in range(3)]
        keystone.state.failing_trust = list(keystone.state.trusts)[1]
        for one in made:
            await api.expect(204, "DELETE", f"subscriptions/{one}")
        api.advance(600)
        await left(keystone, 1)
        keystone.state.failing_trust = ""
        await left(keystone, 0)


async def test_a_receiver_that_answers_410_ends_it_and_to_enable_makes_another(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with Receiver(410) as receiver, make_api(**settings(keystone)) as api:
        made = await subscribe(api, keystone, f"trust+{receiver.url}/hook")
        await api.post({"body": 1})
        (request,) = await receiver.wait(1)
        assert request.headers["x-auth-token"] in keystone.state.tokens
        await left(keystone, 0)
        shown = await api.call("GET", f"subscriptions/{made}?details=true")
        assert shown.json()["disabled"]["reason"] == "the receiver answered 410"
        await api.expect(204, "PATCH", f"subscriptions/{made}", {"disabled": False})
        assert len(keystone.state.trusts) == 1
        receiver.statuses[:] = [204]
        await api.post({"body": 2})
        await receiver.wait(2)


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_server_that_starts_ends_what_was_left_and_nothing_else(
    make_api: MakeApi, keystone: Keystone, tmp_path: Path, sealed: bool
) -> None:
    """Keystone was away, and the server stopped behind it."""
    given = settings(keystone, store=f"embedded:{tmp_path}/data")
    if sealed:
        given["encryption_key_file"] = Path(__file__).with_name("encryption.keys")
    async with make_api(**given) as api:
        gone = await subscribe(api, keystone)
        (old,) = keystone.state.trusts
        await subscribe(api, keystone, f"{HOOK}/2")
        keystone.state.away = 503
        await api.expect(204, "DELETE", f"subscriptions/{gone}")
    assert len(keystone.state.trusts) == 2
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files)
    assert [trust.encode() in stored for trust in keystone.state.trusts] == [not sealed] * 2
    keystone.state.away = None
    api.advance(trusts.UNUSED_MS / 1000)
    async with make_api(**given):
        await left(keystone, 1)
    assert old not in keystone.state.trusts


async def test_a_trust_ends_though_the_token_that_was_kept_of_it_is_revoked(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with Receiver(204) as receiver, make_api(**settings(keystone)) as api:
        made = await subscribe(api, keystone, f"trust+{receiver.url}/hook")
        await api.post({"body": 1})
        (request,) = await receiver.wait(1)
        keystone.revoke(request.headers["x-auth-token"])
        await api.expect(204, "DELETE", f"subscriptions/{made}")
        await left(keystone, 0)


async def test_a_token_of_a_trust_is_kept_for_half_of_its_life(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with Receiver(204) as receiver, make_api(**settings(keystone)) as api:
        await subscribe(api, keystone, f"trust+{receiver.url}/hook")
        tokens = dict[int, str]()
        for number, later in enumerate((0, 1_700, 200)):
            api.advance(later)
            await api.post({"body": number})
            await receiver.wait_for(number)
        for one in receiver.received:  # some may come twice, as their leases lapse
            tokens.setdefault(one.document["body"], one.headers["x-auth-token"])
        assert tokens[0] == tokens[1] != tokens[2]


async def test_a_trust_is_not_forgotten_while_the_server_can_not_log_in(
    make_api: MakeApi, keystone: Keystone, tmp_path: Path
) -> None:
    given = settings(keystone, store=f"embedded:{tmp_path}/data")
    right = keystone.state.users["zaqar"]
    async with make_api(**given) as api:
        made = await subscribe(api, keystone)
        keystone.state.users["zaqar"] = User("another", "service", ("service",))
        before = len(keystone.state.calls)
        await api.expect(204, "DELETE", f"subscriptions/{made}")
        # It tries by the trust, and then by itself.
        await until(lambda: len(keystone.state.calls) >= before + 2)
    keystone.state.users["zaqar"] = right
    api.advance(trusts.UNUSED_MS / 1000)
    async with make_api(**given):
        await left(keystone, 0)
