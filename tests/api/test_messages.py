"""Messages over HTTP (zaqar-behaviour 3)."""

import hashlib
import json

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of

pytestmark = pytest.mark.anyio


async def test_posts_messages_in_order_and_says_where_they_are(api: Api) -> None:
    answer = await api.call("POST", "messages", {"messages": [{"body": 1}, {"body": None}]})
    assert answer.status_code == 201
    resources = answer.json()["resources"]
    ids = [href.rsplit("/", 1)[1] for href in resources]
    assert resources == [f"/v2/queues/{api.queue}/messages/{one}" for one in ids]
    assert answer.headers["location"] == f"/v2/queues/{api.queue}/messages?ids={','.join(ids)}"
    assert set(answer.json()) == {"resources"}
    assert [message["body"] for message in await api.browse()] == [1, None]


async def test_a_location_that_clients_would_refuse_is_left_out(api: Api) -> None:
    """They would take the post for failed and send it again."""
    for count, is_there in ((200, True), (300, False), (4_000, False)):
        messages = {"messages": [{"body": 0}] * count}
        answer = await api.call("POST", "messages", messages)
        assert (answer.status_code, len(answer.json()["resources"])) == (201, count)
        assert ("location" in answer.headers) is is_there
        assert sum(map(len, answer.headers.values())) < 8_192
    assert len(await api.browse("echo=true&limit=20")) == 20


async def test_shows_a_message_with_zaqars_keys_and_no_others(api: Api) -> None:
    (message_id,) = await api.post({"body": {"a": [1, "\u00fc"]}, "ttl": 120, "unknown": 1})
    api.advance(7)
    href = f"/v2/queues/{api.queue}/messages/{message_id}"
    message = (await api.call("GET", f"messages/{message_id}")).json()
    assert message == {
        "id": message_id,
        "href": href,
        "ttl": 120,
        "age": message["age"],
        "body": {"a": [1, "\u00fc"]},
    }
    assert 7 <= message["age"] < 60


async def test_returns_a_body_byte_for_byte(api: Api) -> None:
    body = b'{"b" : 1.0, "a":1e2, "a":  "\\u00e9\xc3\xa9", "big": 12345678901234567}'
    posted = b'{"messages": [{"ttl":60, "body":' + body + b"}]}"
    answer = await api.http.post(f"/v2/queues/{api.queue}/messages", content=posted)
    assert answer.status_code == 201
    listed = await api.call("GET", "messages?echo=true")
    assert b'"body":' + body + b"}" in listed.content
    claimed = await api.call("POST", "claims")
    assert body in claimed.content


async def test_limits_the_size_of_a_post_by_server_and_queue(api: Api) -> None:
    answer = await api.call("POST", "messages", {"messages": [{"body": "x" * 300 * 1024}]})
    assert (answer.status_code, answer.json()["title"]) == (400, "Invalid API request")
    await api.call("PUT", "", {"_max_messages_post_size": 100})
    answer = await api.call("POST", "messages", {"messages": [{"body": "x" * 100}]})
    assert (answer.status_code, answer.json()["title"]) == (400, "Invalid API request")
    await api.post({"body": "x" * 10})
    assert len(await api.browse()) == 1


async def test_uses_the_queues_default_ttl(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_ttl": 100})
    await api.post({"body": 1}, {"body": 2, "ttl": 200})
    assert [message["ttl"] for message in await api.browse()] == [100, 200]


async def test_pages_through_all_messages(api: Api) -> None:
    await api.post(*({"body": n} for n in range(10)))
    path, sizes, seen = "messages?limit=3&echo=true", [], []
    while True:
        answer = (await api.call("GET", path)).json()
        sizes.append(len(answer["messages"]))
        seen += [message["body"] for message in answer["messages"]]
        if not answer["links"]:
            break
        path = answer["links"][0]["href"]
        assert path.startswith(f"/v2/queues/{api.queue}/messages?")
    assert sizes == [3, 3, 3, 1, 0]
    assert seen == list(range(10))


async def test_takes_a_bare_message_id_as_marker_and_nothing_else(api: Api) -> None:
    ids = await api.post({"body": 1}, {"body": 2})
    assert [m["body"] for m in await api.browse(f"echo=true&marker={ids[0]}")] == [2]
    for marker in ("garbage", "%00", "-1", "0" * 33, ids[0].upper() + "x"):
        answer = await api.call("GET", f"messages?echo=true&marker={marker}")
        assert (answer.status_code, answer.json()) == (200, {"messages": [], "links": []})


async def test_hides_own_messages_without_echo(api: Api) -> None:
    await api.post({"body": 1})
    assert await api.browse("") == []
    other = await api.call("GET", "messages", Client_ID="0" * 32)
    assert len(other.json()["messages"]) == 1


async def test_hides_claimed_messages_unless_asked(api: Api) -> None:
    await api.post({"body": 1}, {"body": 2})
    (claimed,) = await api.claim(1)
    assert [message["body"] for message in await api.browse()] == [2]
    both = await api.browse("echo=true&include_claimed=true")
    assert both[0]["href"] == claimed["href"]
    assert "claim_id" not in both[1]["href"]


async def test_a_client_may_ask_for_large_pages_claims_and_pops(make_api: MakeApi) -> None:
    async with make_api(max_large_page=50) as api:
        ids = await api.post(*({"body": number} for number in range(130)))
        page = (await api.call("GET", "messages?echo=true&limit=50&large=true")).json()
        assert len(page["messages"]) == 50
        (following,) = [one["href"] for one in page["links"]]
        assert "large=true" in following
        second = (await api.call("GET", following)).json()
        assert [one["body"] for one in second["messages"]] == list(range(50, 100))
        fetched = await api.call("GET", f"messages?ids={','.join(ids[:50])}&large=true")
        assert len(fetched.json()["messages"]) == 50
        claimed = await api.call("POST", "claims?limit=50&large=true", {})
        assert len(claimed.json()["messages"]) == 50
        held = claimed.headers["location"].rpartition("/")[2]
        done = await api.call("POST", f"claims/{held}/settle", {"delete": ids[:50]})
        assert [one["status"] for one in done.json()["results"]] == [204] * 50
        popped = await api.call("DELETE", "messages?pop=50&large=true")
        assert [one["body"] for one in popped.json()["messages"]] == list(range(50, 100))
        listed = ",".join(ids[100:])
        await api.expect(204, "DELETE", f"messages?ids={listed}&large=true")
        assert await api.browse() == []
        for method, query in (
            ("GET", "messages?limit=51&large=true"),
            ("GET", "messages?limit=50"),
            ("GET", "messages?limit=50&large=false"),
            ("GET", "messages?large=perhaps"),
            ("POST", "claims?limit=51&large=true"),
            ("POST", "claims?limit=50"),
            ("DELETE", "messages?pop=51&large=true"),
            ("DELETE", "messages?pop=50"),
            ("DELETE", f"messages?ids={','.join(ids[:51])}&large=true"),
        ):
            await api.expect(400, method, query)


async def test_without_large_pages_asking_for_them_changes_nothing(make_api: MakeApi) -> None:
    async with make_api(max_large_page=1) as api:
        await api.expect(200, "GET", "messages?limit=20&large=true")
        await api.expect(400, "GET", "messages?limit=21&large=true")
        home = (await api.call("GET", "/v2")).json()["resources"]
        assert home["rel/messages"]["hints"]["max-large-limit"] == 20


async def test_gets_messages_by_their_ids(api: Api) -> None:
    ids = await api.post({"body": 1}, {"body": 2}, {"body": 3})
    await api.claim(1)
    answer = await api.call("GET", f"messages?ids={ids[0]},{ids[2]},nonsense")
    assert sorted(m["body"] for m in answer.json()["messages"]) == [1, 3]
    assert set(answer.json()) == {"messages"}
    repeated = await api.call("GET", f"messages?ids={ids[0]}&ids={ids[1]}")
    assert len(repeated.json()["messages"]) == 2
    encoded = await api.call("GET", f"messages?ids={ids[0]}%2C{ids[1]}%2C")
    assert len(encoded.json()["messages"]) == 2
    for query in ("ids=nonsense", f"ids={'0' * 32}"):
        await api.expect(404, "GET", f"messages?{query}")
    await api.expect(400, "GET", f"messages?ids={','.join(['0' * 32] * 21)}")


async def test_deletes_by_the_table_of_3_5(api: Api) -> None:
    first, second, third = await api.post({"body": 1}, {"body": 2}, {"body": 3})
    held = await api.claim(2)
    claim_id = claim_id_of(held[0])
    other = await api.claim(1)

    async def delete(message_id: str, query: str = "") -> tuple[int, str]:
        answer = await api.call("DELETE", f"messages/{message_id}{query}")
        return answer.status_code, answer.json()["title"] if answer.content else ""

    assert await delete("0" * 32) == (204, "")
    assert await delete("0" * 32, "?claim_id=bogus") == (204, "")
    assert await delete("bogus", "?claim_id=bogus") == (204, "")
    assert await delete(first) == (403, "Unable to delete")
    assert await delete(first, "?claim_id=bogus") == (400, "Unable to delete")
    assert await delete(first, f"?claim_id={'0' * 32}") == (400, "Unable to delete")
    assert await delete(first, f"?claim_id={claim_id_of(other[0])}") == (403, "Unable to delete")
    assert await delete(first, f"?claim_id={claim_id}") == (204, "")
    await api.call("DELETE", f"claims/{claim_id}")
    assert await delete(second, f"?claim_id={claim_id}") == (400, "Unable to delete")
    assert await delete(second) == (204, "")
    api.advance(301)
    assert await delete(third, f"?claim_id={claim_id_of(other[0])}") == (400, "Unable to delete")
    assert [message["id"] for message in await api.browse()] == [third]


async def test_deletes_in_bulk_regardless_of_claims_or_by_them(api: Api) -> None:
    ids = await api.post(*({"body": n} for n in range(5)))
    held = claim_id_of((await api.claim(2))[0])
    answer = await api.call("DELETE", f"messages?ids={ids[0]},{ids[2]}&claim_ids={held}")
    assert (answer.status_code, answer.json()["title"]) == (403, "Unable to delete")
    assert (await api.call("GET", "stats")).json()["messages"]["total"] == 5
    answer = await api.call("DELETE", f"messages?ids={ids[0]},{'0' * 32}&claim_ids={held},")
    assert answer.status_code == 204
    await api.expect(204, "DELETE", f"messages?ids={ids[1]},{ids[2]}")
    assert [message["id"] for message in await api.browse()] == ids[3:]


async def test_deletes_in_bulk_where_a_library_has_encoded_the_commas(api: Api) -> None:
    """Most libraries write a comma of a value as %2C; nothing would be deleted, and said so."""
    ids = await api.post(*({"body": n} for n in range(5)))
    both = [claim_id_of(message) for message in (await api.claim(1)) + (await api.claim(1))]
    query = f"ids={ids[0]}%2C{ids[1]}&claim_ids={both[0]}%2c{both[1]}"
    await api.expect(204, "DELETE", f"messages?{query}")
    await api.expect(204, "DELETE", f"messages?ids={ids[2]}%2C{ids[3]}")
    assert [message["id"] for message in await api.browse()] == ids[4:]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?ids=%2C",
        f"?ids={'%2C'.join('a' * 21)}",
        "?ids=a&pop=1",
        "?pop=0",
        "?pop=21",
        "?pop=-1",
        f"?ids={','.join('a' * 21)}",
    ],
)
async def test_refuses_a_bulk_delete(api: Api, query: str) -> None:
    await api.expect(400, "DELETE", f"messages{query}", title="Invalid API request")


async def test_can_require_claim_ids(make_api: MakeApi) -> None:
    async with make_api(message_delete_with_claim_id=True) as api:
        (message_id,) = await api.post({"body": 1})
        await api.expect(400, "DELETE", f"messages?ids={message_id}")
        held = claim_id_of((await api.claim())[0])
        await api.expect(204, "DELETE", f"messages?ids={message_id}&claim_ids={held}")


async def test_pops_messages_with_their_details_for_who_asks(api: Api) -> None:
    await api.post({"body": 1, "headers": {"kind": "x"}})
    answer = await api.call("DELETE", "messages?pop=1&details=true")
    (popped,) = answer.json()["messages"]
    assert (popped["body"], popped["headers"], popped["attempts"]) == (1, {"kind": "x"}, [])
    assert "href" not in popped


async def test_pops_messages_in_upstreams_shape(api: Api) -> None:
    ids = await api.post({"body": 1}, {"body": 2}, {"body": 3})
    answer = await api.expect(200, "DELETE", "messages?pop=2")
    assert answer.json()["messages"][0] == {
        "id": ids[0],
        "age": 0,
        "ttl": 3600,
        "body": 1,
        "claim_id": None,
        "claim_count": 0,
    }
    assert [message["body"] for message in await api.browse()] == [3]
    await api.call("DELETE", "messages?pop=5")
    assert (await api.call("DELETE", "messages?pop=5")).json() == {"messages": []}


async def test_shows_details_when_asked(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 60})
    headers = {"kind": "order", "\u00fc": "\u00e9"}
    ids = await api.post({"body": 1, "headers": headers}, {"body": 2, "delay": 0})
    (first, second) = await api.browse("echo=true&include_delayed=true&details=true")
    assert first["headers"] == headers
    assert first["delay_expires"] > first["created"]
    assert (second["delay_expires"], second["headers"], second["dead_letter"]) == (None, None, None)
    (claimed,) = await api.claim(1, "&details=true")
    assert (claimed["id"], claimed["claim_count"]) == (ids[1], 1)
    one = (await api.call("GET", f"messages/{ids[0]}?details=true")).json()
    assert one["claim_count"] == 0


async def test_replays_the_first_answer_to_an_idempotency_key(api: Api) -> None:
    first = await api.post({"body": 1}, {"body": 2}, Idempotency_Key="k-1")
    again = {"messages": [{"body": 1, "ttl": 90}, {"body": 2}]}
    answer = await api.call("POST", "messages", again, Idempotency_Key="k-1")
    assert [href.rpartition("/")[2] for href in answer.json()["resources"]] == first
    assert answer.json()["duplicates"] == first
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert len(await api.browse()) == 2
    await api.call("DELETE", "messages?pop=2")
    await api.call("POST", "purge")
    assert await api.post({"body": 1}, {"body": 2}, Idempotency_Key="k-1") == first
    api.advance(601)
    assert await api.post({"body": 1}, {"body": 2}, Idempotency_Key="k-1") != first


@pytest.mark.parametrize("in_header", [True, False])
async def test_refuses_a_key_that_stands_for_another_message(api: Api, in_header: bool) -> None:
    """Two producers that both count from 1: the second one must hear of it."""
    keys = ({}, {"Idempotency_Key": "1"}) if in_header else ({"idempotency_key": "1"}, {})
    await api.post({"body": "a"} | keys[0], **keys[1])
    posted = {"messages": [{"body": "new"}, {"body": "b"} | keys[0]]}
    answer = await api.expect(409, "POST", "messages", posted, **keys[1])
    where = "Idempotency-Key header" if in_header else "Message 1"
    assert where in answer.json()["description"]
    assert answer.json().get("index") == (None if in_header else 1)
    assert [message["body"] for message in await api.browse()] == ["a"]


async def test_stores_a_keyed_message_once(api: Api) -> None:
    posted = [{"body": 1, "idempotency_key": "a"}, {"body": 1, "idempotency_key": "a"}, {"body": 3}]
    answer = await api.call("POST", "messages", {"messages": posted})
    first = [href.rpartition("/")[2] for href in answer.json()["resources"]]
    assert first[0] == first[1] != first[2]
    assert answer.json()["duplicates"] == first[:1]
    assert "Idempotent-Replayed" not in answer.headers  # something was stored
    second = await api.post({"body": 1, "idempotency_key": "a"}, {"body": 4})
    assert second[0] == first[0]
    assert [message["body"] for message in await api.browse()] == [1, 3, 4]
    await api.call("DELETE", "")
    assert (await api.post({"body": 1, "idempotency_key": "a"}))[0] != first[0]


@pytest.mark.parametrize("key", ["", "k" * 129, "a\u00e9", "a\tb"])
async def test_refuses_an_idempotency_key(api: Api, key: str) -> None:
    answer = await api.http.post(
        f"/v2/queues/{api.queue}/messages",
        content=b'{"messages": [{"body": 1}]}',
        headers=[(b"Idempotency-Key", key.encode("latin-1"))],
    )
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["description"]
    assert await api.browse() == []


async def test_limits_what_waits_in_a_queue(make_api: MakeApi) -> None:
    async with make_api(max_messages_per_queue=3, max_idempotency_keys=1) as api:
        await api.post({"body": 1}, {"body": 2}, Idempotency_Key="k")
        for document in ([{"body": 3}, {"body": 4}], [{"body": 3, "idempotency_key": "x"}]):
            answer = await api.expect(503, "POST", "messages", {"messages": document})
            assert int(answer.headers["retry-after"]) >= 1
        await api.post({"body": 3})
        assert [message["body"] for message in await api.browse()] == [1, 2, 3]


async def test_shows_a_checksum_when_enabled(make_api: MakeApi) -> None:
    async with make_api(enable_checksum=True) as api:
        await api.post({"body": "A"}, {"body": {"b": 1, "a": "\u00fc"}}, {"body": None})
        shown = await api.browse()
        assert shown[0]["checksum"] == "MD5:82edce195c3fc73701183f8dbccb4f74"
        text = json.dumps({"b": 1, "a": "\u00fc"}).encode()
        assert shown[1]["checksum"] == f"MD5:{hashlib.md5(text).hexdigest()}"  # noqa: S324
        assert "checksum" not in shown[2]
        popped = (await api.call("DELETE", "messages?pop=1")).json()["messages"]
        assert popped[0]["checksum"] == shown[0]["checksum"]


async def test_cuts_a_queue_into_ranges_that_hold_every_message_once(api: Api) -> None:
    assert (await api.call("GET", "ranges")).json() == {"ranges": []}
    await api.post(*({"body": n} for n in range(17)))
    ranges = (await api.call("GET", "ranges?count=4")).json()["ranges"]
    assert len(ranges) == 4
    assert "marker" not in ranges[0]
    assert "until" not in ranges[-1]
    seen: list[int] = []
    for one in ranges:
        query = "&".join(f"{name}={value}" for name, value in one.items())
        part = await api.browse(f"echo=true&limit=20&{query}")
        assert 3 <= len(part) <= 6
        seen += [message["body"] for message in part]
    assert seen == list(range(17))


async def test_warns_of_a_delay_that_a_normal_queue_ignores(api: Api) -> None:
    document = {"messages": [{"body": 1}, {"body": 2, "delay": 60}]}
    answer = await api.expect(201, "POST", "messages", document)
    assert "is a normal queue" in answer.headers["Zaqar-Lite-Warning"]
    answer = await api.call("POST", "messages", {"messages": [{"body": 1, "delay": 0}]})
    assert "Zaqar-Lite-Warning" not in answer.headers
    await api.call("DELETE", "")
    await api.call("PUT", "", {"_default_message_delay": 5})
    assert "Zaqar-Lite-Warning" not in (await api.call("POST", "messages", document)).headers


async def test_a_post_has_at_most_so_many_messages(make_api: MakeApi) -> None:
    async with make_api(max_messages_per_post=3) as api:
        assert len(await api.post(*[{"body": number} for number in range(3)])) == 3
        messages = {"messages": [{"body": number} for number in range(4)]}
        await api.expect(400, "POST", "messages", messages, says="3 are allowed")
        assert len(await api.browse()) == 3
