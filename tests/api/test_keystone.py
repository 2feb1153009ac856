"""Keystone's tokens: which count, for how long, and what they cost Keystone."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import UNAUTHORIZED, Api, MakeApi, WriteCloud
from tests.keystone import Keystone, User, account_at
from tests.services.process import free_port
from tests.test_tls import make_certificate
from tests.waiting import until
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    ConfigurationError,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from zaqar_lite.server.identity_servers import Cloud, KeystoneServer
from zaqar_lite.service.identity.authentication import Authenticator, Credential, Place
from zaqar_lite.service.identity.keystone import Account
from zaqar_lite.service.identity.keystone import Keystone as KeystoneTokens

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Support for InfluxDB"),  # openstacksdk's own
]
QUEUES = "/v2/queues"
RULE = {"service": "messaging", "method": "GET", "path": "/v2/queues/*/messages"}


def settings(keystone: Keystone, **more: Any) -> dict[str, Any]:
    return {"auth": "keystone", "keystone_url": keystone.url, **more}


@pytest.fixture
def account(keystone: Keystone, write_cloud: WriteCloud) -> dict[str, Any]:
    """Settings of a server with an account."""
    return write_cloud(account_at(keystone.url, "pass word"))


@pytest.fixture
async def guarded(make_api: MakeApi, keystone: Keystone) -> AsyncIterator[Api]:
    async with make_api(**settings(keystone)) as api:
        yield api


async def ask(
    api: Api, token: str | None, path: str = QUEUES, method: str = "GET", **headers: str
) -> httpx.Response:
    if token is not None:
        headers["X-Auth-Token"] = token
    return await api.call(method, path, **headers)


async def test_a_token_is_let_in_to_its_project(guarded: Api, keystone: Keystone) -> None:
    del guarded.http.headers["X-Project-ID"]
    token, other = keystone.issue(project="p"), keystone.issue(project="other")
    posted = await guarded.call("POST", "messages", {"messages": [{"body": 1}]}, X_Auth_Token=token)
    assert posted.status_code == 201
    path = f"{QUEUES}/{guarded.queue}"
    assert (await ask(guarded, token, path)).status_code == 200
    assert (await ask(guarded, token, path, X_Project_ID="p")).status_code == 200
    assert (await ask(guarded, other)).json()["queues"] == []
    for spoofed in ("X_Project_ID", "X_Project_Id"):
        assert (await ask(guarded, other, path, **{spoofed: "p"})).status_code == 403


@pytest.mark.parametrize("name", ["X_Auth_Token", "X_Service_Token"])
async def test_a_token_that_is_too_long_is_refused_without_asking_keystone(
    guarded: Api, keystone: Keystone, name: str
) -> None:
    """Keystone's server may end the connection over such a header: that would look as if it failed.

    Then other projects would get 503 for a second.
    """
    token = keystone.issue("service")
    for size, asked in ((2_049, False), (16_000, False), (2_048, True)):
        keystone.state.calls.clear()
        given = {"X_Auth_Token": token, name: "g" * size}
        assert (await guarded.call("GET", QUEUES, **given)).status_code == 401
        assert ("g" * size in keystone.lookups) == asked
    assert (await ask(guarded, token)).status_code == 200


async def test_identity_headers_of_a_client_count_for_nothing(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with make_api(**settings(keystone, admin_mode=True)) as api:
        forged = {"X_Roles": "admin", "X_Tenant_Id": "other", "X_Service_Roles": "admin"}
        token = keystone.issue("reader")
        assert (await ask(api, token, "/v2/health", **forged)).status_code == 403
        admin = keystone.issue("ADMIN")
        assert (await ask(api, admin, "/v2/health", **forged)).status_code == 200


async def test_who_is_not_known_gets_the_answer_of_keystones_middleware(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with make_api(**settings(keystone, keystone_public_url="https://id.example/v3")) as api:
        good, revoked = keystone.issue(), keystone.issue()
        keystone.revoke(revoked)
        named: dict[str, Any] = {"Authorization": f"Bearer {good}"}
        for token in (None, "gAAAAA", keystone.issue(lives=-1), revoked, "two words", "by bearer"):
            bearer = named if token == "by bearer" else {}
            answer = await ask(api, None if bearer else token, **bearer)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == 'Keystone uri="https://id.example/v3"'
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == UNAUTHORIZED


# What is believed, and for how long.


async def test_keystone_is_asked_once_a_minute_and_once_for_many(
    guarded: Api, keystone: Keystone
) -> None:
    """And every ten seconds about what it has refused; no token counts longer than its end."""
    token, short = keystone.issue(), keystone.issue(lives=30)
    keystone.state.slow = 0.05
    answers = await asyncio.gather(*(ask(guarded, token) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert keystone.lookups == [token]
    assert (await ask(guarded, short)).status_code == 200
    for _ in range(5):
        assert (await ask(guarded, "unknown")).status_code == 401
    assert keystone.lookups == [token, short, "unknown"]
    guarded.advance(11)
    assert (await ask(guarded, "unknown")).status_code == 401
    assert len(keystone.lookups) == 4
    keystone.revoke(token)
    guarded.advance(29)
    keystone.state.offset += 40
    assert (await ask(guarded, token)).status_code == 200  # the window of revocation
    assert (await ask(guarded, short)).status_code == 401
    guarded.advance(21)
    assert (await ask(guarded, token)).status_code == 401
    assert keystone.lookups.count(token) == 2


async def test_nothing_is_believed_where_the_setting_is_0(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with make_api(**settings(keystone, keystone_believed_for=0)) as api:
        token = keystone.issue()
        assert (await ask(api, token)).status_code == 200
        keystone.revoke(token)
        assert (await ask(api, token)).status_code == 401


@pytest.mark.slow
async def test_guesses_of_many_addresses_share_one_call_a_second(keystone: Keystone) -> None:
    server = KeystoneServer(keystone.url, True, timeout=60)
    identity = Authenticator([provider_of(server)], 60, Clock())
    addresses = [f"192.0.2.{number}" for number in range(1, 51)]

    async def guess(name: str) -> list[BaseException | object]:
        waiting = (identity.identify(token_of(f"{name}-{one}"), one) for one in addresses)
        return await asyncio.gather(*waiting, return_exceptions=True)

    first = await guess("first")  # nothing is known of any address yet
    assert {type(one) for one in first} == {Unauthenticated}
    begun, asked = time.monotonic(), len(keystone.lookups)
    guesses = [asyncio.create_task(guess(f"guess-{number}")) for number in range(20)]
    await asyncio.sleep(0)
    took = -time.monotonic()
    for number in range(51, 61):  # beside them, new tokens of other addresses go through
        new = token_of(keystone.issue())
        assert (await identity.identify(new, f"192.0.2.{number}")).user == "alice"
    took += time.monotonic()
    refusals = [one for told in await asyncio.gather(*guesses) for one in told]
    assert {type(one) for one in refusals} <= {Unauthenticated, TooMany}
    assert took < 5  # one after the other, at a question a second, they would take ten
    assert len(keystone.lookups) - asked <= 10 + 1 + (time.monotonic() - begun)
    new = token_of(keystone.issue())
    for _ in range(20):  # and a new token of an address that guessed gets its turn
        try:
            found = await identity.identify(new, addresses[0])
        except TooMany as exc:
            waits = exc.retry_after
            await asyncio.sleep(waits)
        else:
            break
        assert 1 <= waits <= 10
    assert found.user == "alice"
    begun = time.monotonic()  # which then is suspected no more
    for _ in range(10):
        assert (await identity.identify(token_of(keystone.issue()), addresses[0])).user == "alice"
    assert time.monotonic() - begun < 7  # at a question a second they would take nine
    await server.stop()


async def test_a_login_that_outlives_the_server_leaves_no_connection(keystone: Keystone) -> None:
    server = KeystoneServer(keystone.url, True, timeout=60)
    identity = Authenticator([provider_of(server)], 60, Clock())
    looking = asyncio.create_task(identity.identify(token_of(keystone.issue()), "192.0.2.1"))
    await asyncio.sleep(0)
    await server.stop()
    with pytest.raises(Unavailable):
        await looking
    assert keystone.lookups == []
    server.start()
    identity = Authenticator([provider_of(server)], 60, Clock())
    assert (await identity.identify(token_of(keystone.issue()), "192.0.2.2")).user == "alice"
    await server.stop()


def provider_of(server: KeystoneServer) -> KeystoneTokens:
    return KeystoneTokens(
        server.send, uri="", believed_for=60, service_roles=frozenset({"service"})
    )


def token_of(text: str) -> Credential:
    return Credential(Place.TOKEN, text)


# Keystone in trouble.


@pytest.mark.parametrize("trouble", [500, 503, 429, 302, 403, "slow", "garbled"])
async def test_without_keystone_a_new_token_is_503_and_a_known_one_goes_on(
    make_api: MakeApi,
    keystone: Keystone,
    trouble: int | str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    patience: Any = KeystoneServer.__init__.__kwdefaults__
    monkeypatch.setitem(patience, "timeout", 1.0 if trouble == "slow" else patience["timeout"])
    async with make_api(**settings(keystone)) as api:
        known, new = keystone.issue(), keystone.issue()
        assert (await ask(api, known)).status_code == 200
        keystone.state.garbled = trouble == "garbled"
        keystone.state.slow = 2 if trouble == "slow" else 0
        keystone.state.away = trouble if isinstance(trouble, int) else None
        answer = await ask(api, new)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "127.0.0.1" not in answer.text
        assert (await ask(api, known)).status_code == 200
    assert known not in caplog.text
    assert new not in caplog.text
    assert caplog.text.count("Keystone can't say") == 1


@pytest.mark.parametrize("away", [429, 500])
async def test_a_keystone_that_is_not_there_is_tried_once_a_second_and_found_again(
    make_api: MakeApi, keystone: Keystone, caplog: pytest.LogCaptureFixture, away: int
) -> None:
    caplog.set_level("INFO")
    keystone.state.away = away
    async with make_api(**settings(keystone)) as api:
        tokens = [keystone.issue() for _ in range(20)]
        begun = time.monotonic()
        for token in tokens:
            assert (await ask(api, token)).status_code == 503
        assert len(keystone.lookups) <= 1 + (time.monotonic() - begun)
        keystone.state.away = None
        await until(lambda: ask(api, tokens[0]), lambda answer: answer.status_code == 200)
    assert caplog.text.count("Keystone can't say") == caplog.text.count("Keystone says again") == 1
    nobody, elsewhere = f"http://127.0.0.1:{free_port()}", f"{keystone.url}/elsewhere"
    for url, status in ((nobody, 503), (elsewhere, 401)):
        async with make_api(auth="keystone", keystone_url=url) as api:
            assert (await ask(api, "token")).status_code == status
            assert (await ask(api, None)).status_code == 401  # that needs no Keystone
    assert "is keystone_url right?" in caplog.text


# With an account of ours.


async def test_with_an_account_the_server_asks_in_its_own_name(
    make_api: MakeApi, keystone: Keystone, account: dict[str, Any]
) -> None:
    keystone.state.users["zaqar"] = User("pass word", "service", ("service",))
    async with make_api(**account) as api:
        tokens = [keystone.issue() for _ in range(5)]
        answers = await asyncio.gather(*(ask(api, token) for token in tokens))
        assert {answer.status_code for answer in answers} == {200}
        assert (await ask(api, "unknown")).status_code == 401
        logins = [call for call in keystone.state.calls if call.subject is None]
        askers = {call.asker for call in keystone.state.calls if call.subject is not None}
        assert len(logins) == 1
        assert askers.isdisjoint(tokens)
        keystone.revoke(askers.pop() or "")
        assert (await ask(api, keystone.issue())).status_code == 200  # it logged in again
        assert len([call for call in keystone.state.calls if call.subject is None]) == 2


@pytest.mark.parametrize(
    "user",
    [User("another", "service", ("service",)), User("pass word", "service", ("member",))],
    ids=["its password is wrong", "it has no role to ask"],
)
async def test_an_account_that_can_not_ask_is_503_and_in_the_log(
    make_api: MakeApi,
    keystone: Keystone,
    account: dict[str, Any],
    user: User,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keystone.state.users["zaqar"] = user
    async with make_api(**account) as api:
        assert (await ask(api, keystone.issue())).status_code == 503
    assert "keystone_cloud's account" in caplog.text
    assert "pass word" not in caplog.text


ENTRY = account_at("https://id:5000", "sesame")
DEFAULT = {"name": "Default"}


@pytest.mark.parametrize(
    ("entry", "user", "project"),
    [
        ({}, {"name": "zaqar", "domain": DEFAULT}, {"name": "service", "domain": DEFAULT}),
        (
            {"user_domain_name": "d", "project_domain_id": "e"},
            {"name": "zaqar", "domain": {"name": "d"}},
            {"name": "service", "domain": {"id": "e"}},
        ),
        ({"user_id": "1", "project_id": "2"}, {"id": "1"}, {"id": "2"}),
    ],
)
def test_an_entry_of_clouds_yaml_is_the_servers_account(
    write_cloud: WriteCloud,
    entry: dict[str, str],
    user: dict[str, Any],
    project: dict[str, Any],
    tmp_path: Path,
) -> None:
    write_cloud({**ENTRY, **entry}, verify=False)
    cloud = Cloud.named("ours")
    assert cloud.account == Account(user, "sesame", project)
    assert isinstance(cloud.tls, ssl.SSLContext)
    assert (cloud.url, cloud.tls.verify_mode) == ("https://id:5000", ssl.CERT_NONE)
    assert "sesame" not in repr(cloud)
    certificate, _ = make_certificate(tmp_path, "authority")
    write_cloud({"auth_url": "https://id:5000"}, cacert=str(certificate))  # without an account
    cloud = Cloud.named("ours")
    assert (cloud.url, cloud.account) == ("https://id:5000", None)
    assert isinstance(cloud.tls, ssl.SSLContext)
    assert len(cloud.tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("auth", "more", "words"),
    [
        ({"username": "u"}, {}, "needs a password and a project_name"),
        ({"username": "u", "password": "sesame"}, {}, "and a project_name"),
        (ENTRY, {"cacert": "/nowhere"}, "/nowhere"),
        ({}, {"auth_type": "none"}, "does not fit its auth_type: .*'auth_url'"),
        ({"token": "sesame"}, {"auth_type": "token"}, "a token or an application credential"),
        (
            {"application_credential_id": "a", "application_credential_secret": "sesame"},
            {"auth_type": "v3applicationcredential"},
            "a token or an application credential",
        ),
        ("clouds: {ours: {auth_type: none}}", {}, "has no auth_url"),
        ("clouds: {}", {}, "ours"),
        ("a: {sesame", {}, "ours"),
        ("clouds: {ours: {auth: {}}}", {}, "auth_url"),
    ],
)
def test_an_entry_that_can_not_be_used_ends_the_start_and_is_not_shown(
    write_cloud: WriteCloud, tmp_path: Path, auth: Any, more: dict[str, Any], words: str
) -> None:
    if isinstance(auth, str):
        write_cloud(ENTRY)
        (tmp_path / "clouds.yaml").write_text(auth)
    else:
        write_cloud({"auth_url": "https://id:5000", **auth}, **more)
    with pytest.raises(ConfigurationError, match=words) as refused:
        Cloud.named("ours")
    assert "sesame" not in str(refused.value)


# Tokens of services, and access rules.


async def test_a_service_may_pass_on_what_a_user_asked_before_its_token_ended(
    guarded: Api, keystone: Keystone
) -> None:
    """A token of a service that is none opens nothing, not even beside a good one."""
    expired, service = keystone.issue(lives=-5), keystone.issue("service", project="service")
    assert (await ask(guarded, expired)).status_code == 401
    for user, other, status in (
        (expired, service, 200),
        (keystone.issue(), service, 200),
        (keystone.issue(), "", 200),
        (keystone.issue(), "unknown", 401),
        (keystone.issue(), keystone.issue("service", lives=-5), 401),
        (keystone.issue(), keystone.issue("member"), 401),
    ):
        assert (await ask(guarded, user, X_Service_Token=other)).status_code == status


async def test_access_rules_say_what_an_application_credential_is_for(
    guarded: Api, keystone: Keystone
) -> None:
    token = keystone.issue(rules=[{**RULE, "service": "compute", "path": "**"}, RULE])
    for path, method, status in (
        (f"{QUEUES}/orders/messages", "GET", 200),
        (f"{QUEUES}/orders/stats", "GET", 401),
        (QUEUES, "GET", 401),
        (f"{QUEUES}/orders/messages", "DELETE", 401),
    ):
        assert (await ask(guarded, token, path, method)).status_code == status
    service = keystone.issue("service", project="service")
    assert (await ask(guarded, token, QUEUES, X_Service_Token=service)).status_code == 200
    wrong: tuple[dict[str, Any], ...] = ({"path": None}, {"method": 1}, {"path": ["/v2"]})
    for change in wrong:
        token = keystone.issue(rules=[{**RULE, **change}])
        assert (await ask(guarded, token)).status_code in (401, 503)


# Beside other providers, and wrong settings.


async def test_keys_and_keystone_stand_beside_each_other(
    make_api: MakeApi, keystone: Keystone
) -> None:
    async with make_api(**settings(keystone, auth="keys, keystone")) as api:
        assert (await ask(api, keystone.issue())).status_code == 200
        answer = await ask(api, None, Authorization="Bearer zq_wrong")
        assert answer.status_code == 401
        challenges = answer.headers.get_list("www-authenticate")
        assert any(text.startswith("Bearer") for text in challenges)
        assert any(text.startswith("Keystone uri=") for text in challenges)
    assert len(keystone.lookups) == 1
