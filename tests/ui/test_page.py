"""The page as a browser asks for it: what it shows, what its forms do, and what it refuses."""

import asyncio
import html
import re
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import PROJECT, Api, MakeApi, claim_id_of
from tests.waiting import until
from zaqar_lite.domain.limits import MAX_PAGE_BYTES
from zaqar_lite.server.loading import load
from zaqar_lite.service.metrics import queue_depths as recent
from zaqar_lite.ui.formats import spark
from zaqar_lite.ui.page import Page
from zaqar_lite.ui.settings import FIELDS

pytestmark = pytest.mark.anyio
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


class Browser:
    """What a person does on the page: look at an address, and send a form."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.home = f"/ui/p/{PROJECT}/"
        self.queue = f"{self.home}q/{api.queue}/"

    async def look(self, path: str, status: int = 200) -> str:
        answer = await self.api.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def send(
        self, path: str, status: int = 303, on: str = "", **fields: Any
    ) -> httpx.Response:
        """Send what a form of this page, or of the one that it stands on, has fields for."""
        shown = await self.look(on or path)
        assert [name for name in fields if f'name="{name}"' not in shown] == []
        answer = await self.post(path, {"token": await self.token(path), **fields})
        assert answer.status_code == status, answer.text
        return answer

    async def token(self, path: str) -> str:
        found = re.search(r'name="token" value="([^"]+)"', await self.look(path))
        assert found is not None
        return found[1]

    async def post(
        self, path: str, fields: dict[str, str], origin: str | None = None
    ) -> httpx.Response:
        own = str(self.api.http.base_url).rstrip("/")
        return await self.api.http.post(path, data=fields, headers={"Origin": origin or own})


@pytest.fixture
async def browser(make_api: MakeApi) -> AsyncIterator[Browser]:
    async with make_api() as api:
        yield Browser(api)


async def test_shows_the_queues_of_a_project_and_finds_them(browser: Browser) -> None:
    assert "There are no queues." in await browser.look(browser.home)
    await browser.send(browser.home, name="orders")
    await browser.send(browser.home, name="mails")
    page = await browser.look(browser.home)
    assert ">orders</a>" in page
    assert ">mails</a>" in page
    assert ">mails</a>" not in await browser.look(f"{browser.home}?q=ord")
    answer = await browser.api.http.get("/ui/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/p/default/")


async def test_pages_through_many_queues_and_messages(browser: Browser) -> None:
    for number in range(230):
        await browser.api.call("PUT", f"/v2/queues/many-{number:03}", {})
    page, seen, looks = browser.home, set[str](), 0
    while page:
        text = await browser.look(page)
        seen |= set(re.findall(r">(many-\d{3})</a>", text))
        assert "queues on this page, those in trouble first" in text
        more = re.search(r'href="(\?marker=[^"]+)">Next', text)
        page, looks = browser.home + html.unescape(more[1]) if more else "", looks + 1
    assert len(seen) == 230
    assert looks >= 2
    await browser.api.post(*({"body": number} for number in range(25)))
    text = await browser.look(browser.queue)
    more = re.search(r'href="(\?state=all[^"]+)">Next', text)
    assert more is not None
    assert "<code>24</code>" in await browser.look(browser.queue + html.unescape(more[1]))


async def test_a_short_page_has_a_next_one_only_where_messages_are_left(make_api: MakeApi) -> None:
    async with make_api(max_messages_post_size=1_048_576) as api:
        for _ in range(MAX_PAGE_BYTES // 1_000_000 + 1):
            await api.post({"body": "x" * 1_000_000})
        browser = Browser(api)
        assert ">Next" not in await browser.look(browser.queue)
        await api.post({"body": "the last one"})
        more = re.search(r'href="(\?state=all[^"]+)">Next', await browser.look(browser.queue))
        assert more is not None
        text = await browser.look(browser.queue + html.unescape(more[1]))
        assert "the last one" in text
        assert ">Next" not in text


async def test_posts_changes_and_cancels_a_delayed_message(browser: Browser) -> None:
    await browser.api.call("PUT", "", {})
    settings = '{"_default_message_delay": 300, "team": "shop"}'
    await browser.send(browser.queue, act="settings", settings=settings)
    await browser.send(browser.queue, act="post", body='{"n": 1}', ttl="600", delay="120")
    text = await browser.look(browser.queue)
    assert '<td><span class="tag delayed">delayed</span></td>' in text
    assert "<dt>Delayed</dt><dd>1</dd>" in text
    assert re.search(r"<li>1 in (1m to 2m|2m to 3m)</li>", text)
    assert re.search(r'role="img" aria-label="When delayed messages are due: 1 in [12]m', text)
    (message,) = await browser.api.browse("echo=true&include_delayed=true")
    one = f"{browser.queue}m/{message['id']}"
    await browser.send(one, act="edit", body='{"n": 2}', delay="60")
    assert "&#34;n&#34;: 2" in await browser.look(one)
    await browser.send(one, act="delete")
    assert await browser.api.browse("echo=true&include_delayed=true") == []


async def test_a_letter_is_found_understood_and_put_back(browser: Browser) -> None:
    options = {"_max_failures": 1, "_dead_letter_queue": "letters"}
    await browser.api.call("PUT", "", options)
    await browser.api.post({"body": {"order": 7}})
    (held,) = await browser.api.claim(ttl=60, grace=60)
    failed = {"release_in": 0, "failed": True, "reason": "http_503", "detail": HOSTILE}
    answer = await browser.api.call("PATCH", held["href"], {"claim": failed})
    assert answer.status_code == 204, answer.text

    letters = f"{browser.home}q/letters/"
    text = await browser.look(f"{letters}dead")
    assert ">max_failures</a>" in text
    assert '<td class="name">http_503</td>' in text
    message_id = held["id"]
    text = await browser.look(f"{letters}m/{message_id}")
    assert '<span class="tag failed">failed</span> <strong>http_503</strong>' in text
    assert HOSTILE not in text
    assert html.escape(HOSTILE, quote=False).replace('"', "&#34;") in text

    chosen = f"{letters}dead?reason=max_failures"
    answer = await browser.send(chosen, reason="max_failures", dry_run="yes")
    assert "<h1>Count of letters</h1>" in await browser.look(answer.headers["location"])
    answer = await browser.send(f"{letters}dead", on=f"{letters}m/{message_id}", id=message_id)
    assert "This queue is empty." in await browser.look(answer.headers["location"])
    again = {"id": message_id, "token": await browser.token(browser.home)}
    assert (await browser.post(f"{letters}dead", again)).status_code == 400
    assert [one["id"] for one in await browser.api.browse()] == [message_id]


async def fill(api: Api, queue: str, count: int) -> None:
    """Post so many messages."""
    document = {"messages": [{"body": n} for n in range(count)]}
    await api.expect(201, "POST", f"/v2/queues/{queue}/messages", document)


async def test_a_search_finds_by_name_and_counts_and_sorts_by_trouble(browser: Browser) -> None:
    api, home = browser.api, browser.home
    for name, count in (("idle", 0), ("busy", 3), ("broken", 1), ("busy-too", 1)):
        await api.call("PUT", f"/v2/queues/{name}", {"_dead_letter_queue": f"{name}-dead"})
        for _ in range(count):
            await fill(api, name, 1)
    await api.call("PUT", "/v2/queues/broken-dead", {})
    await fill(api, "broken-dead", 2)
    text = await browser.look(home)
    names = re.findall(r">([a-z-]+)</a></th>", text)
    assert names[0] == "broken"
    assert names.index("busy") < names.index("idle")
    for words, found in (
        ("busy", {"busy", "busy-too"}),
        ("ready>1", {"busy", "broken-dead"}),
        ("dead>0", {"broken"}),
        ("busy ready>=3 oldest<1h", {"busy"}),
        ("oldest>1h", set()),
    ):
        text = await browser.look(home + "?" + str(httpx.QueryParams({"q": words})))
        assert set(re.findall(r">([a-z-]+)</a></th>", text)) == found, words
        assert f'value="{html.escape(words)}"' in text
    assert "neither a number" in await browser.look(home + "?q=ready%3Ex", 400)


async def test_what_was_looked_at_is_shown_with_its_last_hour_and_its_rates(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = browser.api
    await api.call("PUT", "", {})
    await api.call("GET", "stats?recent=true")
    assert "<svg" not in await browser.look(browser.home)
    assert ">Posted a minute</dt>" not in await browser.look(browser.queue)
    monkeypatch.setattr(recent, "_LEAST", 0)
    await api.post({"body": 1}, {"body": 2})
    (held,) = await api.claim(limit=1)
    await api.expect(204, "DELETE", held["href"])
    shown = r"<dt>(\w+) a minute</dt><dd>[\d.e+]+</dd>"
    text = await browser.look(browser.queue)
    assert re.findall(shown, text) == ["Posted", "Claimed", "Deleted"]
    numbers = r'class="number(?: zero)?">[\d.e+]+</td>'
    assert len(re.findall(numbers, await browser.look(browser.home))) == 6
    assert spark([[0, 4, 0, 0]]) is None
    drawn = spark([[59, 0, 9, 1], [30, 10, 0, 0], [0, 5, 0, 0]])
    assert drawn is not None
    assert (drawn.points, drawn.height) == ("1,15.0 30,1.0 60,8.0", "8.0")
    assert drawn.words == "0 ready 59 minutes ago, 10 at most, 5 now"


async def test_claims_are_shown_and_released(browser: Browser) -> None:
    api = browser.api
    await api.post({"body": 1}, {"body": 2}, {"body": 3})
    assert "Nobody holds any" in await browser.look(f"{browser.queue}claims")
    held = [*await api.claim(limit=2), *await api.claim(limit=2)]
    claims = {claim_id_of(one) for one in held}
    text = await browser.look(f"{browser.queue}claims")
    assert set(re.findall(r'name="claim" value="([^"]+)"', text)) == claims
    assert "Release 2" in text
    await browser.send(f"{browser.queue}claims", claim=claim_id_of(held[0]))
    text = await browser.look(f"{browser.queue}claims")
    assert re.findall(r'name="claim" value="([^"]+)"', text) == [claim_id_of(held[2])]
    assert len(await api.claim(limit=3)) == 2


async def test_what_is_delayed_is_fired_or_cancelled_by_a_job(browser: Browser) -> None:
    api, jobs = browser.api, f"{browser.queue}jobs"
    await api.call("PUT", "", {"_default_message_delay": 600})
    await api.post({"body": 1}, {"body": 2})
    assert "2 messages are delayed" in await browser.look(jobs)
    await browser.send(jobs, 400, act="fire", confirm="other")
    await browser.send(jobs, 400, act="explode", confirm=api.queue)
    orders: list[dict[str, Any]] = [{"dry_run": "yes"}, {"confirm": api.queue}]
    for fields in orders:
        answer = await browser.send(jobs, act="fire", **fields)
        job = partial(browser.look, answer.headers["location"])
        text = await until(job, lambda seen: ">running</span>" not in seen)
        assert "<h1>Count of messages</h1>" in text if "dry_run" in fields else "Fire" in text
        assert "<dt>Selected</dt><dd>2</dd>" in text
    text = await browser.look(jobs)
    assert text.count(">fire</td>") == 1
    assert ">fire (only counted)</td>" in text
    assert len(await api.claim(limit=3)) == 2


async def test_schedules_are_made_fired_paused_and_ended(browser: Browser) -> None:
    screen = f"{browser.home}schedules"
    assert "There are no schedules." in await browser.look(screen)
    plan: dict[str, Any] = {"name": "nightly", "queue": "reports", "body": '{"n": 1}'}
    await browser.send(screen, 400, act="make", **plan)
    await browser.send(screen, act="make", **plan, cron="30 2 * * *", time_zone="Europe/Berlin")
    text = await browser.look(screen)
    assert '<code class="nowrap">30 2 * * *</code> Europe/Berlin' in text
    await browser.send(screen, act="fire", name="nightly")
    listed = await browser.api.call("GET", "/v2/queues/reports/messages?echo=true")
    assert [one["body"] for one in listed.json()["messages"]] == [{"n": 1}]
    await browser.send(screen, act="pause", name="nightly")
    assert ">paused</span>" in await browser.look(screen)
    await browser.send(screen, act="resume", name="nightly")
    assert ">paused</span>" not in await browser.look(screen)
    await browser.send(screen, 400, act="nonsense", name="nightly")
    await browser.send(screen, act="end", name="nightly")
    assert "There are no schedules." in await browser.look(screen)


async def test_the_server_tells_how_it_does(browser: Browser) -> None:
    await browser.api.post({"body": 1}, {"body": 2})
    await browser.api.claim(limit=1)
    text = await browser.look(f"{browser.home}server")
    assert "with the memory store" in text
    assert "<dt>Posted</dt><dd>2</dd>" in text
    for name in ("Requests", "Store: claim", "First hand-out after a message is ready"):
        assert f'<th scope="row">{name}</th>' in text
    assert "<dt>Sweep debt</dt>" in text
    assert "/pools" not in text
    await browser.look(f"{browser.home}pools", 404)


async def test_pools_are_weighed_and_emptied(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api(admin_mode=True, pooling=True, drain_wait=0.1) as api:
        browser = Browser(api)
        screen = f"{browser.home}pools"
        assert "There are no pools" in await browser.look(screen)
        one = "one é"  # a pool's name may have any characters
        for name in (one, "two"):
            document = {"uri": f"embedded:{tmp_path}/{name[:3]}", "weight": 100}
            await api.expect(201, "PUT", f"/v2/pools/{name}", document)
        assert f'href="{screen}"' in await browser.look(f"{browser.home}server")
        text = await browser.look(screen)
        assert 'aria-label="Weight of one é"' in text
        assert "Empty it" not in text
        await browser.send(screen, name=one, act="weight", weight="0")
        assert 'aria-label="Empty one é"' in await browser.look(screen)
        await browser.send(screen, name=one, act="drain")
        emptied = "completed</span> 0 messages moved, 0 queues left"
        await until(lambda: browser.look(screen), lambda seen: emptied in seen)
        await browser.send(screen, 400, name=one, act="weight", weight="-1")


async def test_a_hostile_body_is_shown_as_the_text_it_is(browser: Browser) -> None:
    (message_id,) = await browser.api.post({"body": HOSTILE, "headers": {"x": HOSTILE}})
    for path in (browser.queue, f"{browser.queue}m/{message_id}"):
        answer = await browser.api.http.get(path)
        assert "<script>alert" not in answer.text
        assert "onerror=alert(1)>" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    body: list[Any] = []
    for _ in range(500):  # as deep as one may be
        body = [body]
    (message_id,) = await browser.api.post({"body": body})
    await browser.look(browser.queue)
    assert "[[[[" in re.sub(r"\s", "", await browser.look(f"{browser.queue}m/{message_id}"))


async def test_what_a_screen_needs_is_there(browser: Browser) -> None:
    files = set(re.findall(r'(?:href|src)="(/ui/static/[^"]+)"', await browser.look(browser.home)))
    assert {one.partition("?")[0].rpartition(".")[2] for one in files} == {"css", "js", "svg"}
    for path in files:
        async with asyncio.timeout(10):
            answer = await browser.api.http.get(path)
        assert (answer.status_code, bool(answer.content)) == (200, True), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        known = {"If-None-Match": answer.headers["etag"]}
        again = await browser.api.http.get(path, headers=known)
        assert (again.status_code, again.content) == (304, b"")


async def test_what_is_wrong_is_told_and_nothing_is_a_bug(browser: Browser) -> None:
    await browser.api.post({"body": 1})
    deep = '{"a":' * 2_000 + "1" + "}" * 2_000
    wrong: list[tuple[dict[str, str], str]] = [
        ({"act": "post", "body": "{"}, "not JSON"),
        ({"act": "post", "body": "1", "ttl": "1"}, "must be between"),
        ({"act": "settings", "settings": '{"_max_claim_count": 0}'}, ""),
        ({"act": "nonsense"}, ""),
        *(({"act": "post", "body": "1", "ttl": one}, "") for one in ("\u00b2", "9" * 5_000)),
        ({"act": "post", "body": "[" * 100_000}, ""),
        ({"act": "settings", "settings": deep}, ""),
        *(({"act": act, "confirm": "other"}, "") for act in ("purge", "delete")),
    ]
    for fields, words in wrong:
        assert words in (await browser.send(browser.queue, 400, **fields)).text
    assert len(await browser.api.browse()) == 1
    for path, status in (
        (f"{browser.queue}m/nothing", 404),
        (f"{browser.home}q/a%20b/", 400),
        (f"{browser.queue}jobs/nothing", 404),
        ("/ui/nothing", 404),
        ("/ui/static/../app.py", 404),
        (f"{browser.queue}subscriptions", 200),
    ):
        await browser.look(path, status)
    name = browser.api.queue  # which must be typed
    await browser.send(browser.queue, act="purge", confirm=name)
    assert await browser.api.browse() == []
    answer = await browser.send(browser.queue, act="delete", confirm=name)
    assert answer.headers["location"] == browser.home


async def test_a_form_of_another_site_does_nothing(browser: Browser) -> None:
    named = await browser.api.http.get(browser.home, headers={"Host": "evil.example"})
    assert named.status_code == 400, "the page is for this machine only"
    await browser.api.post({"body": 1})
    purge = {"act": "purge", "confirm": browser.api.queue}
    whole = {**purge, "token": await browser.token(browser.queue)}
    refused = [
        await browser.post(browser.queue, purge),
        await browser.post(browser.queue, {**purge, "token": "guessed"}),
        await browser.post(browser.queue, whole, origin="http://evil.example"),
        await browser.post(browser.queue, whole, origin="null"),
        await browser.post(browser.queue, {**whole, "more": "x" * 1_100_000}),
    ]
    assert [answer.status_code for answer in refused] == [403] * 5
    assert len(await browser.api.browse()) == 1


async def test_one_signs_in_by_a_key_and_sees_what_it_opens(make_api: MakeApi) -> None:
    async with make_api(auth="keys") as api:
        del api.http.headers["X-Project-ID"]
        browser = Browser(api)
        answer = await api.http.get("/ui/p/-/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
        assert "does not know" in (await browser.send("/ui/sign-in", 403, key="zq_no_no")).text
        assert "too long" in (await browser.send("/ui/sign-in", 400, key="a" * 4_000)).text
        key = await api.make_key("read:*", "manage:o*", project="shop")
        answer = await browser.send("/ui/sign-in", key=key)
        kept = answer.headers["set-cookie"].lower()
        assert kept.startswith("zaqar-lite-key=")
        assert {"httponly", "samesite=strict"} <= set(kept.split("; "))
        assert "secure" not in kept
        await browser.send("/ui/p/-/", name="orders")
        assert ">orders</a>" in await browser.look("/ui/p/-/")
        assert (await browser.send("/ui/p/-/", 403, name="mails")).status_code == 403
        await browser.look("/ui/p/other/", 403)
        await browser.send("/ui/p/-/q/orders/", 403, act="post", body="1")
        answer = await browser.post("/ui/sign-out", {"token": await browser.token("/ui/p/-/")})
        assert answer.status_code == 303
        assert (await api.http.get("/ui/p/-/")).status_code == 303


async def test_a_key_is_kept_for_https_where_a_proxy_ends_it(make_api: MakeApi) -> None:
    async with make_api(auth="keys", max_failed_logins=2) as api:
        browser, address = Browser(api), "/ui/sign-in"
        for _ in range(4):  # a form of another site is no failed login
            forged = await browser.post(address, {"key": "zq_no_no"}, "http://evil.example")
            assert (forged.status_code, "another site" in forged.text) == (403, True)
        fields = {"key": api.operator, "token": await browser.token(address)}
        own = str(api.http.base_url).rstrip("/").replace("http:", "https:")
        answer = await browser.post(address, fields, origin=own)
        assert answer.headers["set-cookie"].endswith("; Secure")
        seen = {"X-Forwarded-Proto": "https", "Cookie": ""}
        shown = await api.http.get(address, headers=seen)
        assert shown.headers["set-cookie"].endswith("; Secure")


async def test_a_token_that_is_none_of_ours_is_replaced(browser: Browser) -> None:
    """Later versions of Python refuse to write a cookie of control characters."""
    for cookie in ("guessed", '"\\012"', '"\\303\\251"'):
        sent = {"Cookie": f"zaqar-lite-token={cookie}"}
        answer = await browser.api.http.get(browser.home, headers=sent)
        assert re.match("zaqar-lite-token=[\\w-]{32};", answer.headers["set-cookie"])
    assert "set-cookie" not in (await browser.api.http.get(browser.home)).headers


async def test_an_operator_is_told_to_name_a_project(make_api: MakeApi) -> None:
    async with make_api(auth="keys", max_failed_logins=4) as api:
        del api.http.headers["X-Project-ID"]
        browser = Browser(api)
        await browser.send("/ui/sign-in", key=api.operator)
        assert "/ui/p/PROJECT/" in await browser.look("/ui/p/-/", 400)
        await browser.look("/ui/p/shop/")
        token, answers = await browser.token("/ui/sign-in"), []
        for n in range(3):
            wrong = {"token": token, "key": f"zq_{n:016x}_{n:048x}"}
            answers.append(await browser.post("/ui/sign-in", wrong))
        assert (answers[0].status_code, answers[-1].status_code) == (403, 429)
        assert "does not know" in answers[0].text
        assert "does not know" not in answers[-1].text
        assert "Too many logins" in answers[-1].text


@pytest.mark.parametrize(
    ("overrides", "shows"),
    [
        ({}, True),
        ({"ui": False}, False),
        ({"host": "10.0.0.1", "trust_headers": True}, False),
        ({"trust_headers": True}, False),
        ({"gateways": "127.0.0.1/32"}, False),
        ({"gateway_secret": "s" * 32}, False),
        ({"host": "10.0.0.1", "auth": "keys"}, True),
        ({"auth": "keystone", "keystone_url": "http://identity/v3"}, False),
    ],
)
def test_is_never_there_where_headers_say_who_somebody_is(
    overrides: dict[str, object], shows: bool
) -> None:
    assert load(environment={}, overrides=overrides).shows_page is shows


async def test_nothing_is_there_where_it_is_off(make_api: MakeApi) -> None:
    async with make_api(ui=False) as api:
        assert (await api.http.get("/ui/")).status_code == 404


async def test_settings_explain_themselves_and_are_changed_one_by_one(browser: Browser) -> None:
    api, queue = browser.api, browser.queue
    await api.call("PUT", "", {"_max_failures": 4, "_dead_letter_queue": "letters", "team": "a"})
    text = await browser.look(queue)
    fields = re.findall(
        r'<input (?:type="\w+" )?name="(set\.\w+)"[^>]*aria-describedby="([\w.-]+)"', text
    )
    assert {name.removeprefix("set.") for name, _ in fields} == {one.key for one in FIELDS}
    assert all(f'id="{hint}"' in text for _, hint in fields)
    assert re.search(r'name="set\._max_failures" value="4"', text)

    async def save(**changed: str) -> dict[str, Any]:
        shown = await browser.look(queue)
        kept = dict(re.findall(r'name="(set\.\w+)" value="([^"]*)"', shown))
        ticked = dict.fromkeys(re.findall(r'name="(set\.\w+)" value="yes" checked', shown), "yes")
        kept = {name: value for name, value in kept.items() if value != "yes"} | ticked
        values = kept | {f"set.{name}": value for name, value in changed.items()}
        await browser.send(queue, act="set", **values)
        found: dict[str, Any] = (await api.call("GET", "")).json()
        return found

    before = (await api.call("GET", "")).json()
    assert await save() == before
    after = await save(_max_failures="7", _default_message_delay="60", _monitor="yes")
    assert after == before | {"_max_failures": 7, "_default_message_delay": 60, "_monitor": True}
    after = await save(_max_failures="", _dead_letter_queue="", _default_message_ttl="")
    assert "_max_failures" not in after
    assert after["_dead_letter_queue"] is None
    assert after["_default_message_ttl"] == before["_default_message_ttl"]
    assert (after["_monitor"], after["team"]) == (True, "a")
    shown = await browser.send(queue, 400, act="set", **{"set._max_failures": "many"})
    assert "must be a whole number" in shown.text
    assert (await browser.send(queue, act="set")).status_code == 303
    assert (await api.call("GET", "")).json()["_monitor"] is False


async def test_a_setting_that_was_not_touched_keeps_what_another_made_of_it(
    browser: Browser,
) -> None:
    api, queue = browser.api, browser.queue
    await api.call("PUT", "", {"_max_failures": 4})
    shown = await browser.look(queue)
    form = dict(re.findall(r'name="((?:set|was)\.\w+)" value="([^"]*)"', shown))
    form["set._default_message_ttl"] = "60"
    del form["set._monitor"]
    meanwhile = '{"_max_failures": 9, "_monitor": true}'
    assert (await browser.send(queue, act="settings", settings=meanwhile)).status_code == 303
    assert (await browser.send(queue, act="set", **form)).status_code == 303
    found = (await api.call("GET", "")).json()
    assert found["_default_message_ttl"] == 60
    assert (found["_max_failures"], found["_monitor"]) == (9, True)


async def test_putting_letters_back_says_how_many_it_touches(browser: Browser) -> None:
    api = browser.api
    settings = {"_dead_letter_queue": "letters", "_max_failures": 1}
    await api.call("PUT", "", settings)
    await api.post(*({"body": number} for number in range(5)))
    held = await api.claim(limit=5)
    for one, reason in zip(held, "aabbb", strict=True):
        claim = {"claim": {"dead": True, "reason": reason}}
        await api.expect(204, "PATCH", one["href"], claim)
    dead = f"{browser.home}q/letters/dead"
    assert ">Put back 5<" in await browser.look(dead)
    assert ">Put back 2<" in await browser.look(f"{dead}?reason=a")
    await api.call("POST", "/v2/queues/letters/claims?limit=1", {"ttl": 60, "grace": 60})
    assert ">Put back 4<" in await browser.look(dead)
    for _ in range(6):
        await api.post(*({"body": number} for number in range(20)))
    while held := await api.claim(limit=20):
        for one in held:
            await api.call("PATCH", one["href"], {"claim": {"dead": True, "reason": "c"}})
    assert ">Put back at least 99<" in await browser.look(dead)


async def test_messages_are_shown_by_state(browser: Browser) -> None:
    api = browser.api
    await api.call("PUT", "", {"_default_message_delay": 600})
    await api.post({"body": "r", "delay": 0}, {"body": "c", "delay": 0}, {"body": "d"})
    (first,) = await api.claim(limit=1)
    assert first["body"] == "r"

    async def shown(state: str) -> list[str]:
        text = await browser.look(f"{browser.queue}?state={state}")
        assert f'href="?state={state}" aria-current="true"' in text
        return re.findall(r"<code>&#34;(.)&#34;</code>", text)

    found = {state: await shown(state) for state in ("all", "ready", "delayed", "claimed")}
    assert found == {"all": ["r", "c", "d"], "ready": ["c"], "delayed": ["d"], "claimed": ["r"]}
    await browser.look(f"{browser.queue}?state=nonsense")


async def test_first_looks_load_the_page_once_and_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a tenth of a second, in which others are served."""
    loaded: list[threading.Thread] = []
    looked: list[str] = []

    async def show(scope: Any, *_: Any) -> None:
        looked.append(scope["path"])

    def load(_: Page) -> Any:
        loaded.append(threading.current_thread())
        return show

    monkeypatch.setattr(Page, "_load", load)
    page = Page(authenticates=False)
    await asyncio.gather(*(page({"path": path}, *[None] * 2) for path in "ab"))  # type: ignore[arg-type]
    assert sorted(looked) == ["a", "b"]
    (thread,) = loaded
    assert thread is not threading.main_thread()
