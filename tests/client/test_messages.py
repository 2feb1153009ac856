"""Messages, against a real server."""

import datetime as dt
from collections.abc import AsyncIterator
from functools import reduce

import pytest

from tests.client.requests import counted
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    BadRequest,
    ClaimLost,
    Client,
    KeyReused,
    MessageClaimed,
    MessageNotFound,
    NewMessage,
    NotDelayed,
    Posted,
    RawBody,
    Rejected,
)

pytestmark = pytest.mark.anyio


def test_any_json_comes_back_as_it_was_posted(client: Client, queue: str) -> None:
    bodies: list[object] = [None, True, 1.5, "ünï\n", [], {"a": [{"b": None}]}, 2**63 - 1]
    ids = client.post_batch(queue, bodies)
    assert [message.body for message in client.list_messages(queue)] == bodies
    assert [client.get_message(queue, one).body for one in ids] == bodies


def test_raw_bodies_are_untouched_both_ways(client: Client, queue: str) -> None:
    texts = [
        b'{"a" : 1.00, "a":2}',
        b'[ 0.1234567890123456789 , {"x":"}]\\""}]',
        b"null",
        b'"\xc3\xbc"',
    ]
    client.post_batch(queue, [RawBody(text) for text in texts])
    assert [message.body for message in client.list_messages(queue, raw=True)] == texts
    with client.claim(queue, raw=True) as claim:
        assert [message.body for message in claim.messages] == texts
        assert all(isinstance(message.body, RawBody) for message in claim.messages)
        claim.skip(*claim.messages)
    assert [message.body for message in client.pop(queue, 3, raw=True)] == texts[:3]
    assert [message.body for message in client.pop(queue)] == ["ü"]
    assert client.pop(queue) == []


def test_one_message_is_not_taken_for_many(client: Client, queue: str) -> None:
    for one in ({"order": 1}, "abc", b"abc", RawBody(b"[]"), NewMessage(body=1)):
        with pytest.raises(TypeError, match="is one message: use post"):
            client.post_all(queue, one)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="post_batch takes an iterable"):
            client.post_batch(queue, one)  # type: ignore[arg-type]
    assert client.stats(queue).total == 0


def test_a_client_can_have_an_encoder_of_its_own(server: ServerProcess, queue: str) -> None:
    with Client(server.url, encoder=lambda body: f'{{"wrapped": "{body}"}}') as client:
        client.create_queue(queue, {"_default_message_delay": 60})
        posted = client.post(queue, 1)
        client.post_batch(queue, [NewMessage(body={2})])
        client.post_all(queue, [3, RawBody(b"4")])
        client.edit(queue, posted, body=5)
        found = client.list_messages(queue, include_delayed=True)
        assert [message.body for message in found] == [
            {"wrapped": "5"},
            {"wrapped": "{2}"},
            {"wrapped": "3"},
            4,
        ]


def test_listing_pages_to_the_end_and_hides_what_it_is_told_to(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.post_batch(queue, list(range(45)))
    assert [message.body for message in client.list_messages(queue)] == list(range(45))
    assert list(client.list_messages(queue, echo=False)) == []
    with client.claim(queue, limit=5) as claim:
        assert len(list(client.list_messages(queue))) == 40
        assert len(list(client.list_messages(queue, include_claimed=True))) == 45
        claim.skip(*claim.messages)
    with Client(server.url, project="someone else") as stranger:
        assert list(stranger.list_messages(queue)) == []


def test_getting_by_ids_leaves_out_what_is_gone_and_details_unless_asked(
    client: Client, queue: str
) -> None:
    ids = client.post_batch(queue, [*range(49), NewMessage(body=49, headers={"trace": "t1"})])
    assert client.get_message(queue, ids[49]).claim_count is None
    detailed = client.get_message(queue, ids[49], details=True)
    assert (detailed.claim_count, detailed.headers) == (0, {"trace": "t1"})
    assert detailed.created is not None
    assert abs(detailed.created - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    client.delete_message(queue, ids[7])
    found = {message.body for message in client.get_messages(queue, ids)}
    assert found == set(range(50)) - {7}
    assert list(client.get_messages(queue, [ids[7]])) == []
    with pytest.raises(MessageNotFound):
        client.get_message(queue, ids[7])


def test_a_delayed_message_can_be_edited_and_cancelled(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 300})
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=100)
    first, second = client.post(queue, "draft", deliver_at=at), client.post(queue, "no", delay=200)
    before = client.get_message(queue, first, details=True).delay_expires
    assert before is not None
    assert dt.timedelta(0) <= before - at + dt.timedelta(seconds=1) < dt.timedelta(seconds=4)
    with pytest.raises(ValueError, match="time zone"):
        client.post(queue, 1, deliver_at=at.replace(tzinfo=None))
    with pytest.raises(ValueError, match="not both"):
        client.post(queue, 1, deliver_at=at, delay=1)
    edited = client.edit(queue, first, body="final", ttl=600, delay=400)
    assert (edited.body, edited.ttl) == ("final", 600)
    after = client.get_message(queue, first, details=True).delay_expires
    assert after is not None
    assert after > before
    client.cancel(queue, second)
    client.cancel(queue, second)
    assert client.stats(queue).total == 1


def test_it_is_too_late_to_edit_what_can_be_claimed(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 300})
    ready = client.post(queue, "out", delay=0)
    with pytest.raises(NotDelayed):
        client.edit(queue, ready, body="other")
    with pytest.raises(MessageNotFound):
        client.edit(queue, "0" * 32, body="other")
    with pytest.raises(ValueError, match="nothing to change"):
        client.edit(queue, ready)
    with client.claim(queue) as claim, pytest.raises(MessageClaimed):
        client.cancel(queue, claim.messages[0].id)


def test_bulk_delete_needs_the_claims_or_force(client: Client, queue: str) -> None:
    ids = client.post_batch(queue, list(range(4)))
    with pytest.raises(ValueError, match="force"):
        client.delete_messages(queue, ids)
    with pytest.raises(ValueError, match="force"):
        client.delete_messages(queue, ids, claim_ids=["a"], force=True)
    with pytest.raises(ValueError, match="empty"):
        client.delete_messages(queue, ids, claim_ids=[])
    held = client.create_claim(queue, limit=2)
    assert held is not None
    with pytest.raises(ClaimLost):
        client.delete_messages(queue, ids, claim_ids=[held.id])
    assert client.stats(queue).total == 4
    client.delete_messages(queue, ids[:2], claim_ids=[held.id])
    client.delete_messages(queue, ids, force=True)
    assert client.stats(queue).total == 0


def test_one_bad_message_does_not_stop_the_others(client: Client, queue: str) -> None:
    rejected: list[Rejected[object]] = []
    items: list[object] = [{"n": number} for number in range(30)]
    items[4] = NewMessage(body=4, ttl=1)
    items[11] = RawBody(b"{not json")
    items[12] = float("nan")
    items[13] = reduce(lambda inner, _: [inner], range(5_000), list[object]())
    summary = client.post_all(queue, items, batch_size=10, on_rejected=rejected.append)
    assert summary.messages == 26
    assert summary.rejected == 4
    assert sorted(one.index for one in rejected) == [4, 11, 12, 13]
    assert client.stats(queue).total == 26
    with pytest.raises(BadRequest):
        client.post_all(queue, items[:10])


def test_a_key_that_stands_for_another_message_is_an_error_that_names_it(
    client: Client, queue: str
) -> None:
    first = client.post(queue, "a", idempotency_key="k")
    assert client.post(queue, "a", idempotency_key="k") == first
    with pytest.raises(KeyReused) as caught:
        client.post_batch(queue, ["new", NewMessage(body="b", idempotency_key="k")])
    assert caught.value.index == 1
    client.post_batch(queue, [1, 2], idempotency_key="batch")
    with pytest.raises(KeyReused) as caught:
        client.post_batch(queue, [1, 3], idempotency_key="batch")
    assert caught.value.index is None
    assert [message.body for message in client.list_messages(queue)] == ["a", 1, 2]


def test_what_stood_there_already_is_reported(client: Client, queue: str) -> None:
    ids = client.post_batch(queue, [1, 2], idempotency_key="batch")
    assert ids.duplicates == []
    again = client.post_batch(queue, [1, 2], idempotency_key="batch")
    assert (list(again), again.duplicates) == (list(ids), list(ids))
    known = client.post(queue, "x", idempotency_key="x")
    mixed = client.post_batch(queue, ["y", NewMessage(body="x", idempotency_key="x")])
    assert mixed.duplicates == [known]
    (same,) = client.post_batch(queue, [NewMessage(body="x", idempotency_key="x")]).duplicates
    assert same == known
    told: list[Posted[int]] = []
    for _ in range(2):
        summary = client.post_all(queue, range(50), key=str, on_posted=told.append)
    assert (summary.messages, summary.duplicates) == (50, 50)
    assert [len(posted.duplicates) for posted in told] == [0, 50]
    other, rejected = f"{queue}-other", list[Rejected[int]]()
    client.post(other, "other", idempotency_key="7")
    summary = client.post_all(other, range(20), key=str, on_rejected=rejected.append)
    assert (summary.messages, [one.index for one in rejected]) == (19, [7])
    assert isinstance(rejected[0].reason, KeyReused)
    with pytest.raises(KeyReused):
        client.post_all(other, range(20), key=str)


def test_a_run_needs_one_key_a_request(client: Client, queue: str) -> None:
    for _ in range(2):
        summary = client.post_all(queue, range(250), run="july")
    assert (summary.messages, summary.duplicates, summary.batches) == (250, 250, 3)
    assert client.stats(queue).total == 250
    with pytest.raises(ValueError, match="not both"):
        client.post_all(queue, range(3), run="july", key=str)
    with pytest.raises(ValueError, match="on_rejected"):
        client.post_all(queue, range(3), run="july", on_rejected=print)


def test_a_run_that_is_another_stores_nothing(client: Client, queue: str) -> None:
    client.post_all(queue, range(1000), run="july", batch_size=64)
    for other in (range(1, 1001), ["x", *range(1, 1000)]):
        with pytest.raises(KeyReused, match="under the run 'july'"):
            client.post_all(queue, other, run="july", batch_size=64)
    with pytest.raises(KeyReused, match="batch size"):
        client.post_all(queue, range(1000), run="july", batch_size=100)
    assert client.stats(queue).total == 1000


def test_a_run_goes_on_after_what_was_refused_was_repaired(client: Client, queue: str) -> None:
    items: list[object] = list(range(100))
    items[37] = NewMessage(body=37, ttl=1)
    with pytest.raises(BadRequest):
        client.post_all(queue, items, run="r", batch_size=10, in_flight=1)
    summary = client.post_all(queue, range(100), run="r", batch_size=10)
    assert (summary.messages, summary.duplicates) == (100, 30)
    assert sorted(int(m.body) for m in client.list_messages(queue)) == list(range(100))


async def test_the_async_client_posts_both_kinds_of_iterables(
    async_client: AsyncClient, queue: str
) -> None:
    rejected: list[Rejected[object]] = []
    items: list[object] = [*range(95), NewMessage(body=1, ttl=1), *range(96, 120)]

    async def produced() -> AsyncIterator[object]:
        for item in items:
            yield item

    for source in (items, produced()):
        summary = await async_client.post_all(
            queue, source, batch_size=20, in_flight=3, on_rejected=rejected.append
        )
        assert (summary.messages, summary.rejected) == (119, 1)
    assert {one.index for one in rejected} == {95}
    assert (await async_client.stats(queue)).total == 238
    assert len([message async for message in async_client.list_messages(queue)]) == 238
    with pytest.raises(BadRequest):
        await async_client.post_all(queue, items)
    runs = [await async_client.post_all(queue, range(250), run="r") for _ in range(2)]
    assert [one.duplicates for one in runs] == [0, 250]


@pytest.mark.parametrize("largest", ["1000", "1"])
def test_a_list_goes_on_with_large_pages_where_the_server_gives_them(
    queue: str, largest: str
) -> None:
    with ServerProcess("memory://", env={"ZAQAR_LITE_MAX_LARGE_PAGE": largest}) as process:
        with Client(process.url) as client:
            client.post_all(queue, range(430), in_flight=1)
            sent = counted(client)
            assert [message.body for message in client.list_messages(queue)] == list(range(430))
            first = list(sent)
            assert len(list(client.list_messages(queue))) == 430
    assert "limit=20&" in first[0]
    if largest == "1000":
        assert len(first) <= 5
        assert all("limit=200&large=true" in one for one in first[1:])
    else:
        assert "limit=200&large=true" in first[1]
        assert all("limit=20&" in one for one in [*first[2:], *sent[len(first) :]])
