"""Whatever is sent, the answer is a clear 4xx in Zaqar's form and nothing is stored."""

import gzip
import json
import sys
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import Api
from tests.waiting import rounds_beside
from zaqar_lite.api import documents
from zaqar_lite.api.request import Refused, request_of
from zaqar_lite.domain.errors import Invalid

pytestmark = pytest.mark.anyio


async def post(api: Api, content: bytes) -> httpx.Response:
    return await api.http.post(f"/v2/queues/{api.queue}/messages", content=content)


async def test_refuses_a_number_that_no_float_holds(api: Api) -> None:
    numbers = (b"1e309", b"-1E+309", b"1" * 250 + b"e99", b"1" * 400 + b".5", b"1" * 18 + b"e300")
    for place in (b'{"body": %b}', b'{"body": 1, "more": [%b]}'):
        sent = b'{"messages": [' + place + b"]}"
        for number in numbers:
            assert (await post(api, sent.replace(b"%b", number))).status_code == 400
            text = b'"' + number + b'"'
            assert (await post(api, sent.replace(b"%b", text))).status_code == 201


KEPT = (
    *(b"9223372036854775807", b"-9223372036854775808", b'"9223372036854775808 in a text"'),
    *(b"0.12345678901234567890123", b"1e300", b"[" * 500 + b"]" * 500, b'"' + b"[" * 2000 + b'"'),
    *(rb'"\"[{\\"', rb'"\ud83d\ude00"', b'"\xf0\x9f\x98\x80"', b'{"a":1,"a":2}', rb'"\u0000"'),
    b' {"spaced" :  1 } ',
)


async def test_keeps_strict_json_as_it_is(api: Api) -> None:
    for body in KEPT:
        assert (await post(api, b'{"messages": [{"body": ' + body + b"}]}")).status_code == 201
        popped = await api.call("DELETE", "messages?pop=1")
        assert body.strip() in popped.content


@pytest.mark.parametrize("depth", [509, 510])
async def test_counts_the_depth_of_the_whole_document(api: Api, depth: int) -> None:
    body = b"[" * depth + b"1" + b"]" * depth
    answer = await post(api, b'{"messages": [{"body": ' + body + b"}]}")
    assert answer.status_code == (201 if depth == 509 else 400)


@pytest.mark.parametrize("depth", [200, 201, 260])
async def test_metadata_may_be_as_deep_as_can_be_written_again(api: Api, depth: int) -> None:
    nested: object = 1
    for _ in range(depth - 1):  # the document itself is the first level
        nested = [nested]
    answer = await api.call("PUT", "", {"nested": nested})
    assert answer.status_code == (201 if depth <= 200 else 400)
    shown = await api.expect(200, "GET", "")
    assert ("nested" in shown.json()) is (depth <= 200)


def test_a_text_of_brackets_is_no_document_and_has_no_depth() -> None:
    with pytest.raises(Refused, match="an object or an array"):
        documents.parse(b'"' + b"[" * 2_000 + b'"')


async def test_refuses_a_body_that_is_not_as_long_as_announced(api: Api) -> None:
    """Also one that is whole JSON: its client went away before it had sent everything."""
    content, path = b'{"messages": [{"body": 1}]}', f"/v2/queues/{api.queue}/messages"

    async def parts() -> AsyncIterator[bytes]:
        yield content[:5]
        yield content[5:]

    for missing in (-10, -1, 1, 10):
        named = {"Content-Length": str(len(content) + missing)}
        answer = await api.http.post(path, content=parts(), headers=named)
        assert (answer.status_code, answer.json()["title"]) == (400, "Invalid request body")

    async def whole_and_more() -> AsyncIterator[bytes]:
        yield content
        yield b" "

    named = {"Content-Length": str(len(content))}
    answer = await api.http.post(path, content=whole_and_more(), headers=named)
    assert answer.status_code == 400
    of_none = [{"Content-Length": length} for length in ("-1", "x", "1" * 19, "1e3")]
    for named in (*of_none, {"Transfer-Encoding": "gzip"}):
        answer = await api.http.post(path, content=parts(), headers=named)
        assert answer.status_code == 400
    assert await api.browse() == []


async def test_a_form_of_the_page_that_is_too_large_is_not_read(api: Api) -> None:
    read: list[int] = []

    async def form() -> AsyncIterator[bytes]:
        read.append(1)
        yield b""

    named = {"Content-Length": str(4 * 1024 * 1024 + 1)}
    answer = await api.http.post("/ui/", content=form(), headers=named)
    assert (answer.status_code, read) == (413, [])


async def posted(content: bytes) -> list[bytes]:
    """The bodies of the messages that a post holds."""
    request = request_of("POST", b"/", b"", ())
    request.document = content
    request.size = request.most = len(content)
    return [bytes(one.body) for one in await documents.read_messages(request)]


PIECES = '{ } [ ] , : " "a" "a":1 "ttl":60 1 - 01 1e5 1e400 1. true nul null \\ \\u00e9 NaN'


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from(PIECES.split()), max_size=6).map(lambda few: " ".join(few).encode())
)
async def test_any_bytes_are_read_as_json_is_or_refused(noise: bytes) -> None:
    for content in (noise, b'{"messages": [{"body": ' + noise + b"}]}"):
        try:
            bodies = await posted(content)
        except Invalid:  # it holds no message
            assert b'"messages": [{"body"' not in content
        except Refused as exc:
            answer = exc
            assert (answer.status, bool(answer.description)) == (400, True)
        else:
            read = json.loads(content)
            assert [json.loads(body) for body in bodies] == [
                one["body"] for one in read["messages"]
            ]


async def test_others_have_turns_while_numbers_are_looked_at() -> None:
    content = b'{"messages": [{"body": [%b]}]}' % b",".join([b"1e100"] * 40_000)
    rounds, bodies = await rounds_beside(posted(content))
    assert (rounds > 80, len(bodies)) == (True, 1)


async def test_finds_a_large_number_where_a_part_of_the_search_ends() -> None:
    for shift in range(20):
        before = b"1," * (documents._SEARCHED // 2 - 20) + b" " * shift
        await posted(b'{"messages": [{"body": [%b1e308, 1]}]}' % before)
        with pytest.raises(Refused):
            await posted(b'{"messages": [{"body": [%b1e309, 1]}]}' % before)


def depth_of(value: object) -> int:
    """The nesting of a value."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


tricky = st.text(alphabet='[]{}"\\19e.-, ', max_size=30)
numbers = st.integers(-(1 << 64), 1 << 64) | st.integers(1 << 62, 1 << 65)
nested = st.recursive(
    tricky | numbers | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tricky, inner, max_size=4),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(nested, max_size=4), st.integers(495, 515))
def test_depth_and_integers_are_told_from_what_is_in_strings(
    values: list[object], deep: int
) -> None:
    tower: object = values
    for _ in range(deep):
        tower = [tower, '"]\\']
    content = json.dumps(tower).encode()
    large = False

    def seen(digits: str) -> int:
        nonlocal large
        large = large or not -(1 << 63) <= int(digits) < 1 << 63
        return 0

    json.loads(content, parse_int=seen)
    accepted = True
    try:
        documents.parse(content, deepest=512)
    except Refused:
        accepted = False
    assert accepted is not (large or deep + depth_of(values) > 512)


@pytest.mark.parametrize(
    "unit", [b"[]", b"[" * 400 + b"]" * 400, b'{"a":{}}', b'""', b"1234567890123456789", b"1"]
)
async def test_the_largest_document_does_not_hold_up_the_others(unit: bytes) -> None:
    """Counted in lines of Python: a check that takes one a byte takes a quarter of a million."""
    many = b",".join([unit] * (250_000 // (len(unit) + 1)))
    content = b'{"messages": [{"body": [1234567890123456789,[],%b]}]}' % many
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert len(await posted(content)) == 1
    finally:
        sys.settrace(before)
    assert lines < 100_000


PLAIN = b'{"messages": [{"body": 1}]}'


async def test_refuses_a_compressed_body_by_what_comes_out(api: Api) -> None:
    path = f"/v2/queues/{api.queue}/messages"
    for content, why in (
        (gzip.compress(b'{"messages": [{"body": "%b"}]}' % (b"x" * 262_144)), "262144 are allowed"),
        (gzip.compress(bytes(100_000_000)), "262144 are allowed"),
        (gzip.compress(PLAIN)[:-12], "ends within its gzip stream"),
        (gzip.compress(PLAIN) + b"x", "goes on behind the end"),
        (PLAIN, "not what its Content-Encoding says"),
    ):
        answer = await api.http.post(path, content=content, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 400
        assert answer.json()["title"] in ("Invalid API request", "Invalid request body")
        assert why in answer.json()["description"]
    for size, status, end in ((65_537, 400, None), (65_536, 400, -4), (65_536, 201, None)):
        metadata = gzip.compress(b'{"a": "%b"}' % (b"x" * (size - len(b'{"a": ""}'))))[:end]
        named = {"Content-Encoding": "gzip"}
        answer = await api.http.put(f"/v2/queues/{api.queue}", content=metadata, headers=named)
        assert (answer.status_code, len(answer.content) > 0) == (status, status == 400)
    for encoding in ("br", "gzip, gzip"):
        headers = {"Content-Encoding": encoding}
        answer = await api.http.post(path, content=PLAIN, headers=headers)
        assert (answer.status_code, answer.json()["title"]) == (400, "Invalid request body")
        assert "Content-Encoding" in answer.json()["description"]
        assert (await api.http.get(path, headers=headers)).status_code == 200  # it has no body
    assert await api.browse() == []
    plain = await api.http.post(path, content=PLAIN, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 201


async def test_the_openapi_document_refuses_in_the_form_of_errors(api: Api) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer = await api.http.request(method, "/openapi.json")
        assert answer.status_code == 405
        assert answer.json() == {"title": "405 Method Not Allowed"}
        assert "GET" in answer.headers["Allow"]
