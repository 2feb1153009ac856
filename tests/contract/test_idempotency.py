"""Idempotency keys: of one message and of a whole post."""

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.subject import MINUTE, QueueUnderTest, new, some
from zaqar_lite.domain.errors import KeyReused, LimitReached
from zaqar_lite.domain.models import Capability
from zaqar_lite.domain.posts import KnownKeys, Posted

pytestmark = pytest.mark.anyio


async def test_a_known_key_answers_the_first_id_and_only_what_is_new_is_stored(
    queue: QueueUnderTest,
) -> None:
    (first,) = await queue.post_all([new("a", key="k")])
    assert not first.duplicate
    again = new("a", key="k", ttl=5 * MINUTE, headers={"trace": "2"})
    assert list(await queue.post_all([again])) == [Posted(first.id, True)]
    posted = await queue.post_all([new("b"), new("a", key="k"), new("c", key="l")])
    assert posted[1] == Posted(first.id, True)
    assert [answer.duplicate for answer in posted] == [False, True, False]
    assert await queue.bodies() == ["a", "b", "c"]
    expected = [first.id, posted[0].id, posted[2].id]
    assert [message.id for message in await queue.listed()] == expected


async def test_a_known_key_with_another_message_is_refused_and_stores_nothing(
    queue: QueueUnderTest,
) -> None:
    """Two producers that both count from 1 must not swallow each other's messages."""
    (first,) = await queue.post(new("a", key="1"))
    with pytest.raises(KeyReused) as raised:
        await queue.post(new("b"), new("c", key="2"), new("another body", key="1"))
    assert raised.value.index == 2
    assert await queue.bodies() == ["a"]
    (second,) = await queue.post_all([new("c", key="2")])
    assert not second.duplicate  # the refused post left no key behind
    assert await queue.post(new("a", key="1")) == [first]


@pytest.mark.parametrize("count", [2, 600])
async def test_keys_are_told_as_long_as_they_are_remembered(
    queue: QueueUnderTest, other: QueueUnderTest, count: int
) -> None:
    """Another store asks for them that a queue is moved to."""
    if count > 2:
        queue.stores.need(Capability.ATOMIC_BATCH)  # others store a long post as a short one
    messages = queue.stores.messages
    find = messages.find_idempotency_keys
    assert await find(queue.ref, ["k0"], "whole") == KnownKeys()
    bodies = [f"{number}" for number in range(count)]
    new_ones = [new(body, key=f"k{body}") for body in bodies]
    ids = await queue.post(*new_ones, batch_key="whole")
    await other.post(new("0", key="k-of-another"))
    await queue.stores.messages.purge(queue.ref)
    known = await find(queue.ref, ["k0", "k1", "k-of-another", "whole"], "whole")
    assert list(some(known.batch).ids) == ids
    assert set(known.messages) == {"k0", "k1"}
    for number in (0, 1):
        key, found = new_ones[number].idempotency_key, known.messages[f"k{number}"]
        assert list(found.ids) == [ids[number]]
        assert key is not None
        assert found.matches(key)
        assert not found.matches(key._replace(digest=bytes(16)))
    assert (await find(queue.ref, ["k1"])).batch is None
    assert (await find(queue.ref)).are_any
    queue.advance(10 * MINUTE)
    await queue.sweep()  # the end of the last key may be told late
    assert await find(queue.ref, ["k0"], "whole") == KnownKeys()


async def test_a_known_batch_key_with_other_messages_is_refused(queue: QueueUnderTest) -> None:
    """The digests, also of messages' keys, outlive the messages and a purge."""
    first = await queue.post("a", new("b", key="key"), batch_key="k")
    for others in (["b", "a"], ["a"], ["a", "b", "c"], ["a", "x"]):
        with pytest.raises(KeyReused) as raised:
            await queue.post(*others, batch_key="k")
        assert raised.value.index is None
    assert await queue.post("a", "b", batch_key="k") == first
    assert await queue.post(new("b", key="key"), batch_key="l") == first[1:]
    assert await queue.bodies() == ["a", "b"]
    await queue.purge()
    with pytest.raises(KeyReused):
        await queue.post(new("c", key="key"))
    for batch_key in ("k", "l"):
        with pytest.raises(KeyReused):
            await queue.post("c", batch_key=batch_key)
    assert await queue.bodies() == []


async def test_a_key_is_remembered_whatever_became_of_the_message(queue: QueueUnderTest) -> None:
    posted = await queue.post(*[new(text, key=text, ttl=MINUTE) for text in "abcd"])
    await queue.delete(posted[0])
    await queue.pop(1)
    await queue.claim(1, ttl=2 * MINUTE)
    queue.advance(5 * MINUTE)  # all of them have expired
    again = await queue.post_all([new(text, key=text) for text in "abcd"])
    assert list(again) == [Posted(message_id, True) for message_id in posted]
    await queue.sweep()
    assert await queue.post(new("a", key="a")) == posted[:1]
    assert await queue.bodies() == []


async def test_keys_belong_to_one_queue_and_a_batch_has_a_name_space_of_its_own(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (one,) = await queue.post(new("a", key="k"))
    (two,) = await other.post(new("a", key="k"))
    assert one != two
    assert await other.bodies() == ["a"]
    for messages, key in (([new("b")], "k"), ([new("c", key="l")], "l")):
        (answer,) = await queue.post_all(messages, batch_key=key)
        assert not answer.duplicate
    assert await queue.bodies() == ["a", "b", "c"]


async def test_dropping_the_queue_forgets_the_keys(queue: QueueUnderTest) -> None:
    first = await queue.post(new("a", key="k"))
    batch = await queue.post("b", batch_key="k")
    await queue.drop()
    assert await queue.post(new("a", key="k")) != first
    assert await queue.post("b", batch_key="k") != batch
    assert await queue.bodies() == ["a", "b"]


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("window", [10 * MINUTE, 3 * MINUTE])
async def test_a_key_is_forgotten_when_its_window_is_over(
    open_stores: OpenStores, queue: QueueUnderTest, is_batch: bool, window: int
) -> None:
    queue = queue.at(await open_stores(idempotency_window_ms=window))

    async def post() -> Posted:
        keyed = new("a", key=None if is_batch else "k")
        (answer,) = await queue.post_all([keyed], batch_key="k" if is_batch else None)
        return answer

    first = await post()
    queue.advance(window - MINUTE)
    assert await post() == Posted(first.id, True)  # which does not lengthen the window
    queue.advance(2 * MINUTE)
    second = await post()
    assert second.id != first.id
    assert not second.duplicate
    assert await queue.bodies() == ["a", "a"]


@pytest.mark.parametrize("key", ["a b", "a:b{c}.d", "a\nb", "\0", "é\U0001f600", "$a.b", "k" * 128])
async def test_any_text_can_be_a_key(queue: QueueUnderTest, key: str) -> None:
    first = await queue.post(new("a", key=key), batch_key=key)
    assert await queue.post(new("a", key=key)) == first
    assert await queue.post("a", batch_key=key) == first
    assert await queue.bodies() == ["a"]


async def test_more_keys_than_the_limit_are_refused_and_nothing_is_stored(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    limited = queue.at(await open_stores(max_idempotency_keys=2))
    await limited.post("no key")
    with pytest.raises(LimitReached) as raised:
        await limited.post(*[new(key, key=key) for key in "abc"])
    assert raised.value.retry_after == 1, "no key will end"
    first = await limited.post(new("a", key="a"))
    limited.advance(4 * MINUTE)
    with pytest.raises(LimitReached) as raised:
        await limited.post(new("b", key="b"), new("c", key="c"))
    assert 300 < raised.value.retry_after <= 360, "the oldest key ends after ten minutes"
    assert await limited.bodies() == ["no key", "a"]
    await limited.post("b", batch_key="b")
    with pytest.raises(LimitReached):
        await limited.post("c", batch_key="c")
    with pytest.raises(LimitReached):
        await limited.post(new("c", key="c"))
    assert await limited.post(new("a", key="a")) == first  # a known key needs no room
    assert await limited.bodies() == ["no key", "a", "b"]
    limited.advance(11 * MINUTE)
    await limited.post(new("c", key="c"))


async def test_a_refused_post_leaves_no_keys_behind(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    limited = queue.at(await open_stores(max_messages=1))
    with pytest.raises(LimitReached):
        await limited.post(new("a", key="a"), new("b", key="b"), batch_key="k")
    (answer,) = await limited.post_all([new("a", key="a")], batch_key="k")
    assert not answer.duplicate
    assert await limited.bodies() == ["a"]


async def test_keys_that_have_ended_hold_no_room_however_many_they_are(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    """Also more than one step forgets, and where nothing has swept since."""
    size = queue.stores.case.size_divisor
    old, fresh = 1_500 // size, 1_100 // size
    limited = queue.at(await open_stores(max_idempotency_keys=old))
    await limited.post(*[new("old", key=f"old-{number}") for number in range(old)])
    with pytest.raises(LimitReached):
        await limited.post(new("refused", key="refused"))
    limited.advance(11 * MINUTE)
    await limited.post(*[new("fresh", key=f"fresh-{number}") for number in range(fresh)])
    assert (await limited.stats()).total == old + fresh
