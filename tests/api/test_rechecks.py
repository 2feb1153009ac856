"""Streams and sockets of who is not known any more: they end, within the window of revocation."""

import asyncio
from typing import Any

import pytest

from tests.api.conftest import PROJECT, MakeApi, bearer, signed_by
from tests.api.test_events import SIGNED, listening, signed
from tests.keystone import Keystone
from zaqar_lite.service.identity import authentication as identity
from zaqar_lite.service.identity import authentication as rechecks
from zaqar_lite.service.identity.keys import Keys

pytestmark = pytest.mark.anyio
EVERY, LOOK = rechecks.LOOK_EVERY, 0.02


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecks, "LOOK_EVERY", LOOK)
    monkeypatch.setattr(identity, "SLOWED", LOOK)


async def ends(listener: Any) -> bool:
    """Whether a stream ends; it would last for an hour."""
    try:
        await asyncio.wait_for(listener.ended.wait(), 10)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("how", ["disabled", "deleted", "by another process", "among wrong keys"])
async def test_a_stream_ends_when_its_key_is_revoked(
    make_api: MakeApi, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another process it is known within five seconds, and no wrong key keeps it open."""
    if how == "by another process":
        monkeypatch.setattr(identity.Authenticator, "forget", lambda _: None)  # nobody tells it
        monkeypatch.setattr(Keys, "believed_for", 60.0)  # requests are answered, and streams end
    async with make_api(auth="keys", max_failed_logins=10) as api:
        key, other = await api.make_key("*:*"), await api.make_key("*:*")
        async with (
            listening(api, authorization=f"Bearer {key}") as gone,
            listening(api, authorization=f"Bearer {other}") as stays,
        ):
            assert (await gone.head)["status"] == (await stays.head)["status"] == 200
            if how in ("disabled", "among wrong keys"):
                await api.disable_key(key)
            else:
                path = f"/v2/keys/{key.split('_')[1]}"
                await api.expect(204, "DELETE", path, **bearer(api.operator))
            if how == "by another process":
                api.advance(5 - EVERY)
            if how == "among wrong keys":
                for number in range(10):
                    wrong = bearer(f"zq_{number:016x}_{'0' * 48}")
                    refused = await api.call("GET", "/v2/queues", **wrong)
                assert refused.status_code == 429
            assert await ends(gone)
            await asyncio.sleep(5 * LOOK)
            assert not stays.ended.is_set()
            await api.post({"body": 1}, Authorization=f"Bearer {other}")
            assert (await stays.next()).body == 1
        assert gone.rest() == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_stream_and_a_waiting_claim_end_when_their_signature_is_revoked(
    make_api: MakeApi,
) -> None:
    async with make_api(**SIGNED) as api:
        key = await api.make_key("*:*")
        query = await signed(api, key, "events")
        document = {"paths": ["claims"], "methods": ["POST"]}
        given = (await api.call("POST", "share", document, **bearer(key))).json()
        headers = {**signed_by(given), "X-Project-ID": given["project"]}
        async with listening(api, query) as listener:
            assert (await listener.head)["status"] == 200
            waits = asyncio.create_task(api.call("POST", "claims?wait=20", **headers))
            await asyncio.sleep(5 * LOOK)
            assert not listener.ended.is_set()
            assert not waits.done()
            await api.expect(204, "DELETE", "share", **bearer(key))
            assert await ends(listener)
            assert (await asyncio.wait_for(waits, 10)).status_code == 404


@pytest.mark.parametrize("how", ["revoked", "another project", "no role for it", "no rule"])
async def test_a_stream_ends_with_its_token_when_that_is_believed_no_longer(
    make_api: MakeApi, keystone: Keystone, how: str
) -> None:
    given: dict[str, Any] = {"auth": "keystone", "keystone_url": keystone.url}
    async with make_api(**given, role_defaults="secure") as api:
        token = keystone.issue("reader", project=PROJECT)
        async with listening(api, **{"x-auth-token": token}) as listener:
            assert (await listener.head)["status"] == 200
            issued = keystone.state.tokens[token]
            if how == "revoked":
                keystone.revoke(token)
            elif how == "another project":
                issued.project = "other"
            elif how == "no rule":
                rule = {"service": "messaging", "method": "GET", "path": "/v2/queues/*/messages"}
                issued.rules = [rule]
            else:
                issued.roles = ("nobody",)
            api.advance(40)
            await asyncio.sleep(5 * LOOK)
            assert not listener.ended.is_set()
            api.advance(21)
            assert await ends(listener)


async def test_a_stream_goes_on_while_keystone_is_away(
    make_api: MakeApi, keystone: Keystone
) -> None:
    given = {"auth": "keystone", "keystone_url": keystone.url, "keystone_believed_for": 0}
    async with make_api(**given) as api:
        token = keystone.issue()
        async with listening(api, **{"x-auth-token": token}) as listener:
            assert (await listener.head)["status"] == 200
            keystone.state.away = 503
            await asyncio.sleep(5 * LOOK)
            assert not listener.ended.is_set()
            keystone.revoke(token)
            keystone.state.away = None
            assert await ends(listener)


@pytest.mark.parametrize(("method", "path"), [("POST", "claims?"), ("GET", "messages?echo=true&")])
async def test_who_waits_is_refused_once_the_key_is_revoked(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    hold, checking = rechecks.Revalidation.hold, set[rechecks.Revalidation]()

    def noted(self: rechecks.Revalidation, *given: Any) -> Any:
        checking.add(self)
        return hold(self, *given)

    monkeypatch.setattr(rechecks.Revalidation, "hold", noted)
    async with make_api(auth="keys") as api:
        key, other = await api.make_key("*:*"), await api.make_key("*:*")
        await api.call("PUT", "", {}, Authorization=f"Bearer {other}")
        waits = [
            asyncio.create_task(api.call(method, f"{path}wait=20", Authorization=f"Bearer {one}"))
            for one in (key, other)
        ]
        await asyncio.sleep(5 * LOOK)
        assert not any(wait.done() for wait in waits)
        await api.call("DELETE", f"/v2/keys/{key.split('_')[1]}", **bearer(api.operator))
        refused = await asyncio.wait_for(waits[0], 10)
        assert refused.status_code == 401
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        await asyncio.sleep(5 * LOOK)
        assert not waits[1].done()
        await api.post({"body": 1}, Authorization=f"Bearer {other}")
        assert (await asyncio.wait_for(waits[1], 10)).json()["messages"][0]["body"] == 1
    assert checking
    assert not any(one._held for one in checking), "what has ended is checked no more"
