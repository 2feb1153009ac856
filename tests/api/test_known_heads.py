"""Heads that are known and not parsed again: each must stand for the same request only."""

import gc
import json
import random
import time
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec.structs import replace

from tests.api.conftest import CLIENT_ID, running
from tests.api.sockets import Raw, parsed, request
from tests.keystone import Keystone
from tests.server import ServerProcess
from zaqar_lite.api.request import Request, Route
from zaqar_lite.domain.identity import Access
from zaqar_lite.main import create_app
from zaqar_lite.server.http1 import KnownHeads
from zaqar_lite.server.loading import load

POST = "/v2/queues/q/messages"
MESSAGE = b'{"messages": [{"body": 1}]}'
AWS = "AWS4-HMAC-SHA256 Credential=k, SignedHeaders=host, Signature="


def test_a_head_that_is_known_stands_for_the_same_request_only(server: ServerProcess) -> None:
    """Whether its body comes at once, in pieces, before another request or not at all."""
    queue = uuid.uuid4().hex
    post = request("POST", f"/v2/queues/{queue}/messages", MESSAGE)
    with Raw(server) as raw:
        for _ in range(3):
            raw.send(post)
            assert raw.answer().status == 201
        raw.send(post[:-5])
        time.sleep(0.05)
        raw.send(post[-5:] + post + b"\r\n" + post + post[:20])
        assert [raw.answer().status for _ in range(3)] == [201] * 3
        raw.send(post[20:])
        assert raw.answer().status == 201
        listed = raw.call("GET", f"/v2/queues/{queue}/messages?echo=true&limit=20").json()
        assert len(listed["messages"]) == 7
        raw.send(post[:-5])
    with Raw(server) as raw:
        raw.send(request("GET", f"/v2/queues/{queue}/stats"))
        assert raw.answer().json()["messages"]["total"] == 7


def test_a_body_is_too_large_whatever_is_known_of_its_head(server: ServerProcess) -> None:
    path = f"/v2/queues/{uuid.uuid4().hex}/claims"
    for size, status in ((5_000, 413), (10, 204), (20, 204), (5_000, 413), (5_001, 413), (10, 204)):
        with Raw(server) as raw:
            assert raw.call("POST", path, b"{}" + b" " * size).status == status


LINES = (
    *("Content-Length: 5", "content-length: 57", "Content-Length: 0", "content-length:7"),
    *("Content-Length:  5", "Content-Length: 5 ", "Content-Length: 0x5", "Content-Length: +5"),
    *("Content-Length: 5, 5", "Content-Length: ", "Content-Length : 5", "Content-Length: 1 2"),
    *(f"Content-Length: {'9' * size}" for size in (17, 18, 19, 25)),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Expect: 100-continue"),
    *("X-Amz-Date: 1", "x-amz-date: 22 2", "X-Amz-Date:\t1", "X-Amz-Date: \x01", "X-Amz-Date:"),
    *("Idempotency-Key: k", "Idempotency-Key: \xe9", "traceparent: 00-a-b-01", " folded: 1"),
    *("\tfolded", "Authorization: AWS4-HMAC-SHA256 Credential=k/d, Signature=0a", "X-Y: 1"),
    *("authorization: AWS4-HMAC-SHA256 Signature=a, Signature=b", "Authorization: Signature=1"),
    *("Connection: close", "Connection: Upgrade", "Upgrade: websocket", "X: \r\nContent-Length: 1"),
)
"""Lines of heads, many of which are wrong or dangerous."""
TARGETS = (
    *("/", "/", "/", "/?x#y", "//h/p", "http://h/v2/queues/q/messages", "/a b", "/%2F", "*"),
    *(
        f"{before}{letter * size}{behind}"
        for before in ("/messages/", "/messages?ids=a,", "/claims/", "/x?y=", "/?a=/claims/")
        for letter, size in (("a", 32), ("0", 32), ("0", 31), ("A", 32))
        for behind in ("", "/settle", "?claim_id=" + "b" * 32, "," + "c" * 32, "#")
    ),
)


def test_each_id_is_that_of_its_own_message_or_claim(server: ServerProcess) -> None:
    queue = f"/v2/queues/{uuid.uuid4().hex}"  # it looks like an id
    with Raw(server) as raw:
        for number in range(4):
            sent = {"messages": [{"body": number}]}
            assert raw.call("POST", f"{queue}/messages", json.dumps(sent).encode()).status == 201
        claims = [raw.call("POST", f"{queue}/claims?limit=1", b"{}").json() for _ in range(4)]
        held = [urlsplit(one["messages"][0]["href"]) for one in claims]
        for number, (path, query) in enumerate((one.path, one.query) for one in held):
            assert raw.call("GET", path).json()["body"] == number
            claim_id, message_id = query.partition("=")[2], path.rpartition("/")[2]
            (found,) = raw.call("GET", f"{queue}/messages?ids={message_id}").json()["messages"]
            assert found["body"] == number
            (found,) = raw.call("GET", f"{queue}/claims/{claim_id}").json()["messages"]
            assert found["body"] == number
            other = held[number - 1].query
            assert raw.call("DELETE", f"{path}?{other}").status in (400, 403)
            if number % 2:
                assert raw.call("DELETE", f"{path}?{query}").status == 204
            else:
                acts = json.dumps({"delete": [message_id]}).encode()
                answer = raw.call("POST", f"{queue}/claims/{claim_id}/settle", acts)
                assert answer.status == 200
            assert raw.call("GET", path).status == 404
            left = raw.call("GET", f"{queue}/stats").json()["messages"]["total"]
            assert left == 3 - number


def test_a_known_head_lets_in_no_more_than_its_credential_does(tmp_path: Path) -> None:
    """Each request is sent thrice, by the same bytes: the second is let in by its head."""
    keys, clock = tmp_path / "admin.key", tmp_path / "clock"
    env = {"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock)}
    options = ("--auth", "keys", "--admin-key-file", str(keys))
    with (
        ServerProcess("memory://", *options, env=env).start(ready=401) as server,
        httpx.Client(base_url=server.url, headers={"Client-ID": CLIENT_ID}) as http,
    ):

        def ask(key: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
            named = {"Authorization": f"Bearer {key}", **headers}
            asked = [http.request(method, path, json=body, headers=named) for _ in range(3)]
            assert len({one.status_code for one in asked}) == 1, [one.text for one in asked]
            return asked[-1]

        def posted(key: str, queue: str = "orders", **headers: str) -> int:
            message = {"messages": [{"body": 1}]}
            path = f"/v2/queues/{queue}/messages"
            status: int = ask(key, "POST", path, message, **headers).status_code
            return status

        operator = keys.read_text().strip()

        def made(*grants: str) -> tuple[str, str]:
            form = {"project": "p", "grants": grants, "expires": 600}
            found = ask(operator, "POST", "/v2/keys", form).json()
            return f"/v2/keys/{found['id']}", found["key"]

        place, key = made("send:orders", "receive:orders")
        _, other = made("read:*")
        assert [posted(key), posted(other), posted(key, "others")] == [201, 403, 403]
        assert [posted(operator, **{"X-Project-ID": name}) for name in "pq"] == [201, 201]
        assert [posted(key, **{"X-Project-ID": name}) for name in "pq"] == [201, 403]
        assert [posted(key, **{"X-Roles": "admin"}), posted("zq_1_2")] == [201, 401]
        # By a claim it is a consumer's, by its name alone a manager's.
        (claimed, *_) = ask(key, "POST", "/v2/queues/orders/claims?limit=1").json()["messages"]
        assert ask(key, "DELETE", claimed["href"]).status_code == 204
        assert ask(key, "DELETE", claimed["href"].partition("?")[0]).status_code == 403
        for is_disabled, status in ((True, 401), (False, 201)):
            changed = ask(operator, "PATCH", place, {"disabled": is_disabled})
            assert (changed.status_code, posted(key)) == (200, status)
        clock.write_text("601000")
        assert posted(key) == 401


def test_a_known_head_lets_in_nobody_who_comes_through_no_gateway() -> None:
    secret = "gateway" * 8
    env = {"ZAQAR_LITE_GATEWAYS": "127.0.0.1/32", "ZAQAR_LITE_GATEWAY_SECRET": secret}
    sent = {"Client-ID": CLIENT_ID, "X-Project-ID": "p"}
    with ServerProcess("memory://", "--sqs", env=env).start(ready=403) as server:
        for place, told, status in (
            ("127.0.0.1", secret, 201),
            ("127.0.0.2", secret, 403),
            ("127.0.0.1", secret, 201),
            ("127.0.0.1", secret[:-1], 403),
        ):
            transport, named = httpx.HTTPTransport(local_address=place), {"X-Gateway-Secret": told}
            with httpx.Client(base_url=server.url, headers=sent, transport=transport) as http:
                asked = [http.post(POST, content=MESSAGE, headers=named) for _ in range(3)]
                named["X-Amz-Target"] = "AmazonSQS.SendMessage"
                message = b'{"QueueUrl":"http://sqs.example/p/q","MessageBody":"x"}'
                asked += [http.post("/", content=message, headers=named) for _ in range(3)]
            of_sqs = 200 if status == 201 else status
            assert [one.status_code for one in asked] == [*[status] * 3, *[of_sqs] * 3]


@pytest.mark.anyio
async def test_rules_are_compared_with_each_request_of_a_known_head(keystone: Keystone) -> None:
    mine, other = f"{POST}/{'a' * 32}", f"{POST}/{'b' * 32}"
    token = keystone.issue(rules=[{"service": "messaging", "method": "GET", "path": mine}])
    settings = {"store": "memory://", "auth": "keystone", "keystone_url": keystone.url}
    app, heads = create_app(load(environment={}, overrides=settings)), KnownHeads()

    async def asked(path: str) -> int:
        sent = request("GET", path, headers={"X-Auth-Token": token})
        head = heads.get(sent) or heads.find_like(sent)
        if head is None:
            (head,) = parsed(sent, heads)
        answered = await app.answer(replace(head))
        assert head.known is not None
        lets_in.append(head.known.route is not None)
        return answered.status

    lets_in: list[bool] = []
    async with running(app):
        assert [await asked(mine), await asked(mine)] == [404, 404]
        assert lets_in == [True, True]
        assert [await asked(other), await asked(other), await asked(mine)] == [401, 401, 404]
        assert app.authentication is not None
        app.authentication.identity.forget()
        assert [await asked(mine), await asked(other), await asked(mine)] == [404, 401, 404]
        app.authentication.authorizer.use_rules(lambda *_: False)
        assert [await asked(mine), await asked(mine)] == [403, 403]


@pytest.mark.anyio
async def test_a_head_is_found_only_if_the_parser_makes_the_same_of_it() -> None:
    """Else a request could be hidden in another one's body.

    What the log leaves out is told by the event loop, where a test before made a server's protocol.
    """
    chance = random.Random(41)
    heads, found = KnownHeads(), 0
    for _ in range(20_000):
        first = f"POST {chance.choice(TARGETS)} HTTP/1.1"
        lines = (first, "Host: h", *chance.choices(LINES, k=chance.randint(0, 4)))
        data = "\r\n".join((*lines, "", "")).encode("latin-1")
        if (known := (heads.get(data) or heads.find_like(data))) is not None:
            (expected,) = parsed(data)
            for name in Request.__struct_fields__[:8]:
                assert getattr(known, name) == getattr(expected, name), (data, name)
            found += 1
        parsed(data, heads)
    assert found > 1_000


@pytest.mark.parametrize(
    ("sent", "like", "is_found"),
    [
        ({"Content-Length": "27"}, {"Content-Length": "5"}, True),
        ({"Content-Length": "27"}, {"Content-Length": "0"}, False),
        ({"Content-Length": "27"}, {"content-length": "27"}, False),
        ({"Content-Length": "27"}, {"Content-Length": "28"}, True),
        ({"Idempotency-Key": "k"}, {"Idempotency-Key": "l"}, True),
        ({"traceparent": "00-1"}, {"traceparent": "00-2"}, True),
        ({"tracestate": "a=1", "baggage": "b=1"}, {"tracestate": "a=2", "baggage": "c=2"}, True),
        ({"X-B3-TraceId": "1", "b3": "2"}, {"X-B3-TraceId": "3", "b3": "4"}, True),
        ({"X-Request-ID": "1 a"}, {"X-Request-ID": "2"}, True),
        ({"x-amz-content-sha256": "0a"}, {"x-amz-content-sha256": "0b"}, True),
        ({"X-Amz-Date": "1", "Content-Length": "1"}, {"X-Amz-Date": "2"}, False),
        ({"Authorization": f"{AWS}a"}, {"Authorization": f"{AWS}b"}, True),
        ({"Authorization": f"{AWS}a"}, {"Authorization": f"{AWS[:-1]}2, Signature=a"}, False),
        (
            {"Authorization": f"{AWS}a, Credential=k"},
            {"Authorization": f"{AWS}a, Credential=l"},
            False,
        ),
        ({"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}, False),
    ],
)
def test_a_head_is_like_one_that_differs_in_its_length_date_and_ids(
    sent: Mapping[str, str], like: Mapping[str, str], is_found: bool
) -> None:
    heads = KnownHeads()
    (known,) = parsed(request("POST", POST, headers=sent), heads)
    assert known.known is not None
    known.known.route, known.known.most = Route("POST", POST, Access(None, None), ()), 100
    found = heads.get(request("POST", POST, headers=like)) or heads.find_like(
        request("POST", POST, headers=like)
    )
    assert (found is not None) is is_found
    if found is not None:
        assert (found.known or found) is known.known
        assert found.headers == {
            **known.headers,
            **{name.lower().encode(): value.encode() for name, value in like.items()},
        }


def test_a_head_that_is_not_kept_any_more_is_freed_at_once() -> None:
    """The server's collector is thorough at half a million objects: a GB of such heads."""
    heads = KnownHeads()
    gc.disable()
    try:
        for number in range(1_100):
            sent = request("POST", POST, headers={"X-Unique": str(number), "Idempotency-Key": "k"})
            (one,) = parsed(sent, heads)
            if not number:
                first = weakref.ref(one.known)
                assert first() is not None
            del one
        assert first() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("sent", "is_kept"),
    [
        (request("GET", POST), True),
        (request("POST", POST, length=27), True),
        (request("POST", "/v2/queues/q/claims?limit=5"), True),
        (request("DELETE", f"{POST}/{'0' * 32}"), True),
        (request("DELETE", f"{POST}/{'0' * 31}"), False),
        (request("DELETE", f"{POST}?ids={'0' * 32},{'1' * 32}"), True),
        (request("DELETE", f"{POST}?ids=0,1"), False),
        (request("GET", f"{POST}?marker=7"), False),
        (request("GET", POST, headers={"Connection": "close"}), False),
        (request("POST", POST, headers={"Transfer-Encoding": "chunked"}), False),
    ],
)
def test_only_a_head_that_may_come_again_is_kept(sent: bytes, is_kept: bool) -> None:
    heads = KnownHeads()
    parsed(sent, heads)
    assert ((heads.get(sent) or heads.find_like(sent)) is not None) is is_kept


def test_no_head_takes_long_to_be_looked_for() -> None:
    """Compared with one of the same size, of which nothing is cut out."""
    worst = b"AWS4-HMAC-SHA256 " + b"Signature=" * 390 + b"a\t"

    def least(name: bytes) -> int:
        data = b"GET / HTTP/1.1\r\n%b: %b\r\n\r\n" % (name, worst)
        times: list[int] = []
        for _ in range(20):
            begun = time.thread_time_ns()
            KnownHeads().find_like(data)
            times.append(time.thread_time_ns() - begun)
        return min(times)

    assert least(b"Authorization") < 20 * least(b"Unauthorized!")
