"""Posting: order, ids, bodies byte for byte, limits."""

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.stores import Stores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, new
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Capability, QueueRef
from zaqar_lite.domain.posts import NewMessage

pytestmark = pytest.mark.anyio


async def test_ids_are_answered_in_the_order_of_the_batch_and_unique_over_queues(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    posted = await queue.post_all([new(str(n)) for n in range(20)])
    assert all(is_message_id(answer.id) and not answer.duplicate for answer in posted)
    listed = await queue.listed()
    assert ids(listed) == [answer.id for answer in posted]
    assert await queue.bodies() == [str(n) for n in range(20)]
    assert len({*ids(listed), *await other.post(*map(str, range(20)))}) == 40


async def test_a_body_is_kept_byte_for_byte(queue: QueueUnderTest) -> None:
    bodies = [
        b"null",
        b"0",
        b"1e400",
        b'{ "b" : 1,  "a": [1.0, 1.00],"b":2 }',
        '"na\u00efve \U0001f600 \\u0000"'.encode(),
        b'"' + b"x" * 20_000 + b'"',
        b'""',
    ]
    await queue.post(*[NewMessage(body, HOUR) for body in bodies])
    assert [message.body for message in await queue.listed()] == bodies


async def test_a_message_shows_what_it_was_posted_with(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post(
        new("a", ttl=7 * MINUTE, headers={"x-kind": "order", "é": "ü"}), client="me"
    )
    message = await queue.get_one(message_id)
    assert message.ttl_ms == 7 * MINUTE
    assert message.expires_at == message.created_at + 7 * MINUTE
    assert message.client_id == "me"
    assert message.headers == {"x-kind": "order", "é": "ü"}
    assert (message.claim_id, message.claim_count, message.origin) == (None, 0, None)
    assert message.delay_expires_at is None
    assert 0 <= message.age_ms < MINUTE


async def test_two_projects_with_one_queue_name_share_nothing(queue: QueueUnderTest) -> None:
    theirs = QueueUnderTest(queue.stores, QueueRef(queue.ref.project + "x", queue.ref.name))
    (message_id,) = await queue.post("mine")
    assert await theirs.bodies() == []
    assert not await theirs.get(message_id)
    assert (await theirs.claim()).claim_id is None
    await theirs.delete(message_id)
    await theirs.post("theirs")
    await theirs.purge()
    assert await queue.bodies() == ["mine"]
    claim_id = await queue.claim_id()
    await theirs.release(claim_id)
    assert await queue.counts() == (0, 0, 1)
    await theirs.drop()
    assert await queue.bodies() == ["mine"]


async def test_a_client_comes_back_as_it_was(queue: QueueUnderTest) -> None:
    """Also a UUID in another spelling than stores that pack it write it in."""
    own = "3381af92-2b9e-11e3-b191-71861300734c"
    for client in (own, own.upper(), own.replace("-", ""), "worker 1", "", "ümläut" * 50):
        for headers in (None, {}, {"a": "b", "ä": "{}"}):
            (posted,) = await queue.post(new("a", headers=headers), client=client)
            message = await queue.get_one(posted)
            assert (message.client_id, message.headers) == (client, headers or None)


async def test_positions_go_on_after_a_restart_with_a_clock_that_was_set_back(
    queue: QueueUnderTest,
) -> None:
    """Also behind what is deleted by then: a reader at its marker must not miss what comes."""
    queue.stores.need(Capability.DURABLE)
    queue.advance(HOUR)
    earlier = await queue.post("a", "gone", ttl=3 * HOUR)
    await queue.delete(earlier[1])
    old = queue.stores
    await old.close()
    queue = queue.at(await Stores.open(old.case, old.uri, Clock(), old.options, old.opened))
    (later,) = await queue.post("b")
    assert later > max(earlier)
    assert await queue.bodies() == ["a", "b"]


AWKWARD = [
    ("a.b", "c"),
    ("a", "b.c"),
    ("a:b", "c"),
    ("a{b}", "c"),
    ("{a}", "c"),
    ("a}{b", "c"),
    ("a}:{b", "c"),
    ("zl:messages:{x}", "c"),
    ("a/b", "c"),
    ("a%2Fb", "c"),
    ("*", "c"),
    ("a b", "c"),
    ("", "c"),
    ("é\U0001f600", "c"),
    ("A", "c"),
    ("a", "C"),
    ("a", "."),
    ("a", ".."),
]


async def test_dots_colons_and_braces_in_names_mix_nothing_up(queue: QueueUnderTest) -> None:
    prefix, suffix = queue.ref.project, queue.ref.name[-8:]
    queues = [
        QueueUnderTest(
            queue.stores,
            QueueRef(
                f"{prefix}{project}" if project else prefix,
                name if name.strip(".") == "" else f"{name}-{suffix}",
            ),
        )
        for project, name in AWKWARD
    ]
    for number, each in enumerate(queues):
        await each.post(str(number))
    for number, each in enumerate(queues):
        claimed = await each.claim()
        assert [message.body for message in claimed.messages] == [f'"{number}"'.encode()]
        assert await each.counts() == (0, 0, 1)
        await each.drop()
    for each in queues:
        assert await each.bodies() == []


async def test_a_queue_holds_no_more_messages_than_it_may(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    """In whatever state they are; what is refused is refused whole, and what left makes room."""
    limited = queue.at(await open_stores(max_messages=3))
    deleted, _ = await limited.post("a", "b", ttl=10 * MINUTE)
    with pytest.raises(LimitReached):
        await limited.post("c", "d")
    assert await limited.bodies() == ["a", "b"]
    await limited.claim(1, ttl=MINUTE)
    await limited.post("delayed", delay=5 * MINUTE)
    with pytest.raises(LimitReached):
        await limited.post("one too many")
    await limited.delete(deleted)
    await limited.post("c")
    limited.advance(11 * MINUTE)  # b expires; no sweep
    await limited.post("d")
    assert await limited.bodies() == ["delayed", "c", "d"]
