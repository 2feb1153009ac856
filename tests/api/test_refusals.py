"""What each kind of document may not say: it is refused as a whole, in words that say why.

That a document is strict JSON, and not larger than its route allows, is in `test_table`.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from tests.api.conftest import Api, nested

pytestmark = pytest.mark.anyio
REQUEST, BODY = "Invalid API request", "Invalid request body"
CONFLICT, TYPE = "Resource conflict", "415 Unsupported Media Type"
PATCH = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
ID = "0" * 32
URL = "http://receiver.example:8080/hook"
QUEUE, TOPIC, LETTERS = "/v2/queues/orders", "/v2/topics/news", "/v2/queues/letters"
LATE = "/v2/queues/late"
"""A queue that delays its messages."""


def each(field: str, *values: object, **others: object) -> list[Any]:
    """Documents in which a field has one of these values, beside what the others have."""
    return [{**others, field: value} for value in values]


def posts(messages: Iterable[Any]) -> list[Any]:
    """Posts of one of these messages each, behind one that is as it should be."""
    return [{"messages": [{"body": 0}, message]} for message in messages]


def patches(*operations: object) -> list[Any]:
    """Patches of which the last operation is one of these."""
    return [[{"op": "add", "path": "/metadata/z", "value": 1}, one] for one in operations]


class Refusals(NamedTuple):
    """Documents that a route refuses, some beside the words that say why: (document, words).

    `{late}` in the path is a message that waits, `{held}` one that is held by `{claim}`.
    """

    asked: str
    documents: Sequence[Any]
    title: str = ""
    status: int = 400
    headers: Mapping[str, str] = {}


POOL = {"uri": "memory://", "weight": 1}
BACK_OFF = "_retry_backoff"
ADD = {"op": "add", "value": 1}
PLAN = {"queue": "orders", "body": 1}
NO_PLANS: list[dict[str, Any]] = [
    *({"cron": "* * * *"}, {"cron": "* * * * *", "every": 1}, {"every": 0, "jitter": 0}),
    {"at": "tomorrow"},
    {"every": 1, "start": "2030-01-02T00:00:00Z", "end": "2030-01-02T00:00:00Z"},
    *each("colour", "red", every=1),
    *each("queue", "a/b", every=1),
    *each("missed", "some", every=1),
    *each("time_zone", "Mars", every=1),
    *each("jitter", "2d", every=1),
    *each("catch_up", "2d", every=1),
    *each("group", "x" * 129, every=1),
    *each("ttl", 1, every=1),
    *each("body", "x" * 50_000, every=1),
]
REFUSED = (
    Refusals(
        f"PUT {QUEUE}-new",
        [
            (document, next(iter(document)))
            for document in (
                *each("_default_message_ttl", 59, 1_209_601, 0, "", "60", True),
                *each("_max_messages_post_size", 0, 262_145),
                *each("_default_message_delay", -1, 901, 1.5),
                *each("_max_claim_count", 0, -1, 65_536, "3"),
                *each("_max_failures", 0, 65_536, True),
                *each("_max_redrives", 0, 256, True),
                *each("_done_retention", -1, 1 << 32),
                *each("_failed_retention", -1, 1 << 32),
                *each("_dead_letter_queue", 7, "a@b", "", ".", ".."),
                *each("_dead_letter_queue_messages_ttl", 59, 1_209_601, "60", True),
                *each("_enable_encrypt_messages", []),
                *each("_retry_policy", 3),
                *each("_flavor", 1),
                *each("_ttl_after_delay", 1),
                *each("_honour_delays", 1),
                *each("_notify_on_post", "yes"),
                *each("_monitor", 1),
                *each(BACK_OFF, "fast", {"type": "cubic"}, {"type": ["list"]}),
                *each(BACK_OFF, {"type": "linear", "min": 1, "max": 101}),
                *each(BACK_OFF, {"type": "exponential", "min": 1}),
                *each(BACK_OFF, {"type": "exponential", "min": 10, "max": 5}),
                *each(BACK_OFF, {"type": "exponential", "min": 1, "max": 43_201}),
                *each(BACK_OFF, {"type": "list", "delays": []}),
                *each(BACK_OFF, {"type": "list", "delays": [1] * 101}),
                *each(BACK_OFF, {"type": "list", "delays": [1], "jitter": 2}),
                *each(BACK_OFF, {"type": "list", "delays": [1], "max": 2}),
                {"_filter": 3},
            )
        ]
        + [
            (document, "position")
            for document in (
                *each("_filter", "colour = ", "a.b(c)"),
                *each("_priority", "TRUE", "RULES ("),
            )
        ],
        REQUEST,
    ),
    Refusals(
        f"PATCH {QUEUE}",
        [
            {},
            *patches(
                {"op": "add", "path": "/metadata/_default_message_ttl", "value": 1},
                {"op": "move", "path": "/metadata/a", "value": 1},
                {"op": "add", "path": "/metadata/a"},
                *each("path", "metadata/a", "/metadata", "/metadata/a/b", "/metadata//a", **ADD),
                *each("path", "/metadata/a/", "/metadata/~2", "/foo/a", 3, **ADD),
                {"path": "/metadata/a", "value": 1},
                "add",
            ),
        ],
        BODY,
        headers=PATCH,
    ),
    *(
        Refusals(
            f"PATCH {place}",
            patches(
                {"op": "replace", "path": "/metadata/none", "value": 1},
                {"op": "remove", "path": "/metadata/none"},
            ),
            CONFLICT,
            409,
            PATCH,
        )
        for place in (QUEUE, TOPIC)
    ),
    Refusals(
        f"PATCH {TOPIC}",
        patches(
            {"op": "move", "path": "/metadata/a", "value": 1},
            {"op": "add", "path": "/metadata/_default_message_ttl", "value": 1},
        ),
        headers=PATCH,
    ),
    Refusals(f"PATCH {TOPIC}", [[{**ADD, "path": "/metadata/a"}]], TYPE, 415),
    Refusals(f"PUT {TOPIC}", each("_default_message_ttl", 1)),
    Refusals(f"POST {QUEUE}/purge", [{}, *each("resource_types", ["x"], "messages", [1])], REQUEST),
    Refusals(
        f"POST {QUEUE}/messages",
        [
            *each("messages", None, {}, ["text"], [None], [{}]),
            *posts(
                (
                    {"ttl": 60},
                    *each("ttl", "60", 60.0, None, True, "", body=1),
                    *each("delay", None, "1", body=1),
                    *each("idempotency_key", 1, None, body=1),
                    *each("headers", [], {"a": 1}, None, body=1),
                )
            ),
        ],
        BODY,
    ),
    Refusals(
        f"POST {QUEUE}/messages",
        [
            *({}, [], [{"body": 1}], b'"x"', {"messages": []}),
            *posts(
                (
                    *each("ttl", 59, -1, 1_209_601, body=1),
                    *each("idempotency_key", "", "k" * 129, body=1),
                    *each("headers", {str(n): "" for n in range(33)}, {"h": "v" * 8192}, body=1),
                )
            ),
        ],
        REQUEST,
    ),
    Refusals(
        f"POST {QUEUE}/messages",
        [
            *((one, "message 1") for one in posts(each("ttl", "", body=1))),
            *((one, "Message 1: A group") for one in posts(each("group", "", "g" * 129, body=1))),
            *(
                (one, "Message 1: deliver_at: 'tomorrow' is not an instant")
                for one in posts(each("deliver_at", "tomorrow", body=1))
            ),
            (b'{"messages": 1, "messages": [{"body": 1}]}', "must be a list"),
            (b'{"messages": [{"body": 1, "ttl": "x", "ttl": 60}]}', '"ttl" field must be a int'),
            ({"messages": [{"body": 1, "headers": {"a": 1}}]}, " - at `$.messages"),
            ({"messages": [{"body": 1, "idempotency_key": 1}]}, " - at `$.messages"),
        ],
    ),
    Refusals(
        f"POST {QUEUE}/messages",
        [
            b'{"messages": [{"body": ' + body + b"}]}"
            for body in (
                *(b"", b"nonsense", b"{'a': 1}", b"tru", b"01", b"+1", b".5", b"1 2", b"//x\n1"),
                *(b"NaN", b"Infinity", b"-Infinity", b"[1,]", b'{"a":1,}', b'"\x01"'),
                *(rb'"\ud800"', rb'"\udc00\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"'),
                *(b"9223372036854775808", b"-9223372036854775809", b"1" * 4000),
                b'{"a": [9223372036854775808]}',
                b"[" * 10_000 + b"]" * 10_000,
                b'{"a":' * 600 + b"1" + b"}" * 600,
            )
        ],
        BODY,
    ),
    Refusals(
        f"POST {LATE}/messages",
        [(one, "Message 1") for one in posts(each("delay", -1, 901, body=1))],
        REQUEST,
    ),
    Refusals(
        f"POST {TOPIC}/messages",
        posts(
            (
                {"ttl": 60},
                *each("ttl", 1, body=1),
                *each("delay", 901, body=1),
                *each("deliver_at", "2930-01-01T00:00:00Z", "soon", body=1),
                *each("deliver_at", "2030-01-01T00:00:00Z", body=1, delay=1),
            )
        ),
    ),
    Refusals(
        f"POST {QUEUE}/claims",
        [
            *each("ttl", 59, 43_201, -1, grace=60),
            *each("grace", 59, 43_201, -1, ttl=60),
        ],
        REQUEST,
    ),
    *(
        Refusals(asked, [[], *each("ttl", "60", True), *each("grace", 60.5)], BODY)
        for asked in (f"POST {QUEUE}/claims", f"PATCH {QUEUE}/claims/{{claim}}")
    ),
    Refusals(f"PATCH {QUEUE}/claims/{{claim}}", each("ttl", 59, 43_201), REQUEST),
    Refusals(f"PATCH {QUEUE}/claims/{{claim}}", [b""], BODY),
    Refusals(
        f"PATCH {LATE}/messages/{{late}}",
        [
            *({}, [], ({"claim": {"failed": True}}, "field `claim`; there are body, ttl, delay.")),
            *each("ttl", 59, None, 60.5, 60),  # the last would end before the delay
            *each("delay", -1, 901, "1"),
            {"ttl": 60, "delay": 61},
        ],
    ),
    *(
        Refusals(
            f"PATCH {QUEUE}/messages/{message}",
            [
                {"claim": act}
                for act in (
                    {},
                    *each("release_in", -1, 43_201, True, "1"),
                    {"release_in": 1, "ttl": 60},
                    {"release_in": 1, "unknown": 1},
                    {"release_in": 1, "reason": "x" * 129},
                    {"release_in": 1, "detail": "\u00fc" * 1_025},
                    {"ttl": 1},
                    {"dead": False},
                    {"dead": True, "failed": True},
                    {"failed": False},
                    {"reason": "no act"},
                )
            ],
        )
        for message in ("{held}?claim_id={claim}", f"{ID}?claim_id={ID}")
    ),
    Refusals(
        f"POST {QUEUE}/claims/{ID}/settle",
        [
            {},
            *each("delete", "x", [1], [f"{number:032x}" for number in range(1_001)]),
            *each("release", [{}]),
            ({"release": [{"id": "a"}], "delete": ["a"]}, "Message 'a' is named twice."),
            *each("extend", [{"id": "a"}]),
            ({"dead": [{"id": "a", "ttl": 60}]}, "unknown field `ttl` - at `$.dead[0]`."),
            *each("unknown", []),
        ],
    ),
    Refusals(
        f"POST {QUEUE}/claims/{ID}/settle",
        [
            *(b"", b'{"delete": ["a"]} x', b'{"delete": ["\xff"]}', rb'{"delete": ["\ud800"]}'),
            b'{"extend": [{"id": "a", "ttl": NaN}]}',
            b'{"extend": [{"id": "a", "ttl": ' + b"9" * 5_000 + b"}]}",
            b'{"delete": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        ],
        BODY,
    ),
    Refusals(
        f"POST {QUEUE}/subscriptions",
        [
            (b"", "Missing parameter 'subscriber'"),
            ({}, "No subscription to create"),
            ([], "must be a dict"),
            ({"ttl": 60}, "Missing parameter"),
            *(
                ({"subscriber": subscriber}, words)
                for subscriber, words in (
                    ("", "length >= 1 - at `$.subscriber`"),
                    (3, "must be a text"),
                    ("fake", "must be supported in the list"),
                    ("email://fake", "must be supported in the list"),
                    ("queue:a", "must be supported in the list"),
                    ("http://", "names no host"),
                    ("http://a b/", "without blanks"),
                    ("http://host/\r\nX: y", "without blanks"),
                    ("http://user:secret@host/", "no user and no password"),
                    ("http://host:22/", "port is 80"),
                    ("http://host:99999/", "no valid URL"),
                    ("trust+https://host/", "Keystone"),
                    ("mailto:a@b.org", "smtp_url"),
                )
            ),
            *(
                ({"subscriber": URL, "options": options}, words)
                for options, words in (
                    ("123", "must be a dict"),
                    ({"post_headers": []}, "Expected `object | null`"),
                    ({"post_headers": {"Host": "x"}}, "this server alone"),
                    ({"post_headers": {"webhook-id": "x"}}, "server alone"),
                    ({"post_headers": {"a b": "x"}}, "no name of a header"),
                    ({"post_headers": {"a": "x\ny"}}, "printable"),
                    ({"post_headers": {"a": 1}}, "at `$.post_headers[...]`"),
                    ({"post_data": {}}, "at `$.post_data`"),
                    ({"dead_letter_queue": "a b"}, "name of a queue"),
                    ({"_retry_policy": 3}, "Expected `object`"),
                    ({"_retry_policy": {"minimum_delay": 25}}, "at least 10"),
                    ({"x": "y" * 33_000}, "32768"),
                )
            ),
            *(
                ({"subscriber": URL, "ttl": ttl}, words)
                for ttl, words in (
                    ("123", "must be an integer"),
                    (None, "must be an integer"),
                    (True, "must be an integer"),
                    (0, "at least 60"),
                    (59, "at least 60"),
                    (1 << 62, "year 9999"),
                    (253_402_300_800 - int(time.time()), "year 9999"),
                )
            ),
        ],
        REQUEST,
    ),
    Refusals(
        f"POST {TOPIC}/subscriptions",
        [
            ({"subscriber": "queue:"}, "queue:NAME"),
            ({"subscriber": "queue:a b"}, "queue:NAME"),
            ({"subscriber": "Queue:a"}, "a topic takes queue:NAME"),
            ({"subscriber": "ftp://example.org"}, "must be supported in the list"),
            ({"subscriber": "queue:a", "options": {"ordered": True}}, "ordered"),
        ],
    ),
    Refusals(
        f"POST {QUEUE}/share",
        [
            *each("paths", ["stats"], "messages", [1]),
            *each("methods", "GET", [1], ["GET,POST"], ["BREW"]),
            *each("expires", 1_900_000_000, "1900000000", "soon"),
            *each("expires", "2020-01-01T00:00:00", "2999-01-01T00:00:00"),
            *each("expires", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"),
            {"more": 1},
        ],
        REQUEST,
    ),
    Refusals(
        f"POST {LETTERS}/redrives",
        [
            *({}, {"ids": [], "filter": {}}),
            *each("ids", [], ["x", "x"], "abc"),
            *each(
                "filter",
                {"colour": "red"},
                {"where": "reason ="},
                {"due_before": "tomorrow"},
                *each("older_than", -1, 1 << 64),
                *each("group", "", "x" * 129),
                {"body": {"path": "x" * 257, "equals": 1}},
                {"body": {"path": "x", "equals": 1 << 64}},
                {"body": {"path": "x", "equals": nested(198)}},
            ),
            *each("to", "letters", filter={}),
            *each("limit", 0, filter={}),
            *each("max_per_second", 0, filter={}),
            *each("delay", 901, filter={}),
            *each("reset", "all", filter={}),
            *each("by", 1, filter={}),
            *each("colour", "red", filter={}),
        ],
    ),
    Refusals(
        f"POST {QUEUE}/delayed/move",
        [
            {"filter": {}},
            *each("to", "soon", "2999-01-01T00:00:00Z", filter={}),
            *each("to", "2001-01-01T00:00:00Z", filter={}, by=1),
            *each("by", 901, -901, filter={}),
            *each("if_due", "soon", filter={}, by=1),
            *each("force", True, filter={}, by=1),
        ],
    ),
    Refusals(
        "PUT /v2/schedules/nightly",
        [
            *({**PLAN, **fields} for fields in ({}, *NO_PLANS)),
            ({**PLAN, "cron": "0 25 * * *"}, "The hour of 'cron' is '25'; it may be 0 to 23"),
            ({**PLAN, "cron": "@reboot"}, "@reboot"),
        ],
    ),
    Refusals("PATCH /v2/schedules/hourly", [{"cron": "x"}, *NO_PLANS]),
    Refusals("PUT /v2/schedules/a%20b", [{**PLAN, "every": 60}]),
    Refusals(
        "PUT /v2/pools/two",
        [
            *({}, {"uri": "memory://"}, {"weight": 1}),
            *each("weight", -1, 2**32 + 1, "big", True, uri="memory://"),
            *each("uri", 1, "memory://" + "x" * 255, weight=1),
            *({**POOL, "options": []}, {**POOL, "flavor": 3}, {**POOL, "extra": 3}),
        ],
        BODY,
    ),
    Refusals(
        "PATCH /v2/pools/one",
        [{}, {"foo": 1}, {"weight": "a"}, {"uri": 1}, {"options": 1}],
        BODY,
    ),
    Refusals(
        "PUT /v2/flavors/slow",
        [{}, {"pool_list": "a"}, {"pool_list": ["one"], "x": 1}],
        BODY,
    ),
    Refusals(
        "PUT /v2/flavors/slow",
        [
            (
                {"pool_list": ["none"]},
                "Flavor slow could not be created, error:Pool none does not exist",
            ),
            ({"pool_list": []}, "Bad Request"),
        ],
        "Unable to create",
    ),
    Refusals("PATCH /v2/flavors/fast", each("pool_list", ["none"], []), "updatefail"),
    Refusals("PATCH /v2/flavors/fast", [{}], BODY),
    Refusals("PATCH /v2/flavors/none", each("pool_list", ["one"]), "Not found", 404),
    Refusals(
        "POST /v2/keys",
        [
            {},
            *each("grants", ["post:*"], [], "send:*", ["send:*"] * 65),
            *each("expires", 0, grants=["send:*"]),
            *each("project", "", "x" * 257, grants=["send:*"]),
            *each("description", 1, grants=["send:*"]),
        ],
        REQUEST,
    ),
    Refusals(
        "PUT /v2/quotas/demo",
        [{"queue": 1}, *each("queues", -1, 10**15 + 1, "1", True), {"read_bytes": 0}, [1]],
    ),
)


async def prepare(api: Api) -> dict[str, str]:
    """Make something of each kind; answer the ids of what is held, and of what waits."""
    one = {"messages": [{"body": 0}]}
    await api.expect(201, "PUT", "/v2/pools/one", POOL)
    await api.expect(201, "PUT", "/v2/flavors/fast", {"pool_list": ["one"]})
    await api.expect(201, "PUT", LATE, {"_default_message_delay": 100})
    await api.expect(201, "PUT", TOPIC)
    await api.expect(201, "PUT", "/v2/schedules/hourly", {**PLAN, "every": 3_600})
    late = await api.expect(201, "POST", f"{LATE}/messages", one)
    await api.expect(201, "POST", f"{QUEUE}/messages", one)
    claimed = await api.expect(201, "POST", f"{QUEUE}/claims")
    held, claim = claimed.json()["messages"][0]["href"].rpartition("/")[2].split("?claim_id=")
    (waits,) = late.json()["resources"]
    return {"late": waits.rpartition("/")[2], "held": held, "claim": claim}


async def state(api: Api, ids: Mapping[str, str]) -> list[Any]:
    """What the server shows of all that the documents could have made or changed."""
    lists = ("queues", "topics", "pools", "flavors", "keys", "quotas/demo")
    found = [(await api.call("GET", f"/v2/{one}?detailed=true")).json() for one in lists]
    for path in (f"{LATE}/messages/{ids['late']}?details=true", f"{QUEUE}/claims/{ids['claim']}"):
        shown = (await api.call("GET", path)).json()
        found.append({**shown, "age": 0, "messages": len(shown.get("messages", ()))})
    for queue in (QUEUE, LATE):
        counts = (await api.call("GET", f"{queue}/stats")).json()["messages"]
        found.append([counts[name] for name in ("claimed", "free", "total")])
        found.append((await api.call("GET", f"{queue}/subscriptions")).json())
    found.append((await api.call("GET", f"{LETTERS}/redrives")).json())
    schedules = (await api.call("GET", "/v2/schedules")).json()["schedules"]
    return [*found, *({**one, "next": None} for one in schedules)]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda one: f"{one.asked} {one.title}")
async def test_is_refused_and_changes_nothing(operated: Api, refused: Refusals) -> None:
    ids = await prepare(operated)
    before = await state(operated, ids)
    method, path = refused.asked.format_map(ids).split(" ")
    for one in refused.documents:
        document, words = one if isinstance(one, tuple) else (one, "")
        content = document if isinstance(document, bytes) else json.dumps(document)
        answer = await operated.http.request(method, path, content=content, headers=refused.headers)
        told = (answer.status_code, answer.text[:500], str(document)[:200])
        assert answer.status_code == refused.status, told
        assert refused.title in ("", answer.json()["title"]), told
        assert answer.json()["description"], told
        assert words in answer.json()["description"], told
    assert await state(operated, ids) == before
