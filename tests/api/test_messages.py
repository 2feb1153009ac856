"""Messages over HTTP (zaqar-behaviour 3)."""

import hashlib
import json

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of

pytestmark = pytest.mark.anyio


async def test_a_post_says_where_its_messages_are_and_each_has_zaqars_keys(api: Api) -> None:
    document = {"messages": [{"body": 1}, {"body": {"\u00fc": [1]}, "ttl": 120, "unknown": 1}]}
    answer = await api.expect(201, "POST", "messages", document)
    resources = answer.json()["resources"]
    ids = [href.rsplit("/", 1)[1] for href in resources]
    assert resources == [f"/v2/queues/{api.queue}/messages/{one}" for one in ids]
    assert answer.headers["location"] == f"/v2/queues/{api.queue}/messages?ids={','.join(ids)}"
    assert set(answer.json()) == {"resources"}
    api.advance(7)
    message = (await api.call("GET", f"messages/{ids[1]}")).json()
    assert 7 <= message.pop("age") < 60
    named = {"id": ids[1], "href": resources[1], "ttl": 120}
    assert message == {**named, "body": {"\u00fc": [1]}}


async def test_a_location_that_clients_would_refuse_is_left_out(api: Api) -> None:
    """They would take the post for failed and send it again."""
    for count, is_there in ((200, True), (300, False), (4_000, False)):
        messages = {"messages": [{"body": 0}] * count}
        answer = await api.call("POST", "messages", messages)
        assert (answer.status_code, len(answer.json()["resources"])) == (201, count)
        assert ("location" in answer.headers) is is_there
        assert sum(map(len, answer.headers.values())) < 8_192
    assert len(await api.browse("echo=true&limit=20")) == 20


async def test_the_attributes_of_a_queue_bound_a_post_and_are_its_defaults(api: Api) -> None:
    await api.call("PUT", "", {"_max_messages_post_size": 100, "_default_message_ttl": 100})
    large = {"messages": [{"body": "x" * 73}]}  # 101 bytes
    await api.expect(400, "POST", "messages", large, title="Invalid API request")
    await api.expect(201, "POST", "messages", {"messages": [{"body": "x" * 72}]})
    await api.post({"body": "x"}, {"body": 2, "ttl": 200})
    assert [message["ttl"] for message in await api.browse()] == [100, 100, 200]
    await api.set("_default_message_delay", 60)
    (delayed,) = await api.post({"body": 1})
    for size, status in ((89, 400), (88, 200)):  # 101 and 100 bytes
        await api.expect(status, "PATCH", f"messages/{delayed}", {"body": "x" * size})


async def test_pages_through_all_messages_that_are_asked_for(api: Api) -> None:
    ids = await api.post(*({"body": n} for n in range(10)))
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
    assert [m["body"] for m in await api.browse(f"echo=true&marker={ids[8]}")] == [9]
    for marker in ("garbage", "%00", "-1", "0" * 33, ids[0].upper() + "x"):
        answer = await api.call("GET", f"messages?echo=true&marker={marker}")
        assert (answer.status_code, answer.json()) == (200, {"messages": [], "links": []})
    assert await api.browse("") == []  # they are the client's own
    (claimed,) = await api.claim(1)
    assert [message["body"] for message in await api.browse("echo=true&limit=1")] == [1]
    both = await api.browse("echo=true&include_claimed=true&limit=2")
    assert both[0]["href"] == claimed["href"]
    assert "claim_id" not in both[1]["href"]


async def test_a_client_may_ask_for_large_pages_claims_and_pops(make_api: MakeApi) -> None:
    async with make_api(max_large_page=50) as api:
        ids = await api.post(*({"body": number} for number in range(130)))
        page = (await api.call("GET", "messages?echo=true&limit=50&large=true")).json()
        second = (await api.call("GET", page["links"][0]["href"])).json()
        assert [one["body"] for one in second["messages"]] == list(range(50, 100))
        assert len(await api.claim(50, "&large=true")) == 50
        popped = (await api.call("DELETE", "messages?pop=50&large=true")).json()["messages"]
        assert [one["body"] for one in popped] == list(range(50, 100))
        for method, status in (("GET", 200), ("DELETE", 204)):
            for first, answer in ((79, 400), (80, status)):  # 51 and 50
                path = f"messages?ids={','.join(ids[first:])}&large=true"
                await api.expect(answer, method, path)


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
    """Also where a library has written the commas of a value as %2C, as most do."""
    ids = await api.post(*({"body": n} for n in range(7)))
    held, other = [claim_id_of((await api.claim(2))[0]) for _ in range(2)]
    await api.expect(
        403, "DELETE", f"messages?ids={ids[0]},{ids[2]}&claim_ids={held}", title="Unable to delete"
    )
    assert (await api.call("GET", "stats")).json()["messages"]["total"] == 7
    for query in (
        f"ids={ids[0]},{'0' * 32}&claim_ids={held},",
        f"ids={ids[1]}%2C{ids[2]}&claim_ids={held}%2c{other}",
        f"ids={ids[3]},{ids[4]}",
        f"ids={ids[5]}%2C{'0' * 32}",
    ):
        await api.expect(204, "DELETE", f"messages?{query}")
    assert [message["id"] for message in await api.browse()] == ids[6:]


async def test_can_require_claim_ids(make_api: MakeApi) -> None:
    async with make_api(message_delete_with_claim_id=True) as api:
        (message_id,) = await api.post({"body": 1})
        await api.expect(400, "DELETE", f"messages?ids={message_id}")
        held = claim_id_of((await api.claim())[0])
        await api.expect(204, "DELETE", f"messages?ids={message_id}&claim_ids={held}")


async def test_pops_messages_in_upstreams_shape_with_details_for_who_asks(api: Api) -> None:
    ids = await api.post({"body": 1}, {"body": 2, "headers": {"kind": "x"}}, {"body": 3})
    answer = await api.expect(200, "DELETE", "messages?pop=1")
    (popped,) = answer.json()["messages"]
    plain = {"id": ids[0], "age": 0, "ttl": 3600, "body": 1, "claim_id": None, "claim_count": 0}
    assert popped == plain
    (popped,) = (await api.call("DELETE", "messages?pop=1&details=true")).json()["messages"]
    assert (popped["body"], popped["headers"], popped["attempts"]) == (2, {"kind": "x"}, [])
    assert "href" not in popped
    assert len((await api.call("DELETE", "messages?pop=5")).json()["messages"]) == 1
    assert (await api.call("DELETE", "messages?pop=5")).json() == {"messages": []}


async def test_an_idempotency_key_answers_the_first_ids_and_says_so(api: Api) -> None:
    first = await api.post({"body": 1}, {"body": 2}, Idempotency_Key="k-1")
    again = {"messages": [{"body": 1, "ttl": 90}, {"body": 2}]}
    answer = await api.call("POST", "messages", again, Idempotency_Key="k-1")
    assert [href.rpartition("/")[2] for href in answer.json()["resources"]] == first
    assert answer.json()["duplicates"] == first
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert len(await api.browse()) == 2
    api.advance(601)
    assert await api.post({"body": 1}, {"body": 2}, Idempotency_Key="k-1") != first
    posted = [{"body": 1, "idempotency_key": "a"}, {"body": 1, "idempotency_key": "a"}, {"body": 3}]
    answer = await api.call("POST", "messages", {"messages": posted})
    keyed = [href.rpartition("/")[2] for href in answer.json()["resources"]]
    assert keyed[0] == keyed[1] != keyed[2]
    assert answer.json()["duplicates"] == keyed[:1]
    assert "Idempotent-Replayed" not in answer.headers  # something was stored


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


async def test_refuses_an_idempotency_key(api: Api) -> None:
    path, content = f"/v2/queues/{api.queue}/messages", b'{"messages": [{"body": 1}]}'
    for key in ("", "k" * 129, "a\u00e9", "a\tb"):
        named = [(b"Idempotency-Key", key.encode("latin-1"))]
        answer = await api.http.post(path, content=content, headers=named)
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


async def test_notes_that_pile_up_stop_no_post(make_api: MakeApi) -> None:
    """A delivery that waits until its message is due is a note in a queue of the server's own."""
    async with make_api(max_messages_per_queue=3) as api:
        for queue in (api.queue, "other"):
            path = f"/v2/queues/{queue}"
            await api.call("PUT", path, {"_default_message_delay": 60})
            subscriber = {"subscriber": "http://receiver.example/", "ttl": 3_600}
            await api.expect(201, "POST", f"{path}/subscriptions", subscriber)
            messages = {"messages": [{"body": n} for n in range(3)]}
            await api.expect(201, "POST", f"{path}/messages", messages)


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
