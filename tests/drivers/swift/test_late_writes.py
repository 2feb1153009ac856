"""Writes that hang on their way and come when the queue has gone on: Swift refuses each."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import (
    HOUR,
    MINUTE,
    QueueUnderTest,
    ack,
    backoff,
    bury,
    extend,
    fail,
    give_back,
    ids,
    texts,
)
from tests.contract.test_readiness import EVENTS, Event, happens
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import Fault, FaultyProxy
from tests.drivers.swift.together import OpenSwift, together
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef, RetryPolicy
from zaqar_lite.domain.settlements import Outcome, Settlement

pytestmark = pytest.mark.anyio

QUICK = "&timeout=1&patience=6"
FAILING = "&timeout=3&patience=1"
"""A write that hangs fails, and is not repeated; others have their time on a busy machine, too."""


async def land(fault: Fault, go: threading.Event) -> None:
    """Let what hangs go on, and wait until Swift has answered it."""
    assert fault.hits == 1
    go.set()
    for _ in range(400):
        if fault.landed:
            break
        await asyncio.sleep(0.025)
    assert fault.landed == [401]


async def claim(queue: QueueUnderTest, *_: str) -> None:
    await queue.release(await queue.claim_id())


async def renew(queue: QueueUnderTest, _: str, claim_id: str) -> None:
    await queue.renew(claim_id)
    await queue.release(claim_id)


async def edit_body(queue: QueueUnderTest, *_: str) -> None:
    (message_id,) = await queue.post("b", delay=MINUTE)
    await queue.edit(message_id, "a", delay=0)


async def fail_one(queue: QueueUnderTest, message_id: str, claim_id: str) -> None:
    """It waits for a back-off that is over when the late write comes."""
    retries = RetryPolicy(backoff=backoff(MINUTE))
    assert await queue.outcomes(claim_id, fail(message_id), retries=retries) == [Outcome.DONE]
    queue.advance(2 * MINUTE)


async def extend_one(queue: QueueUnderTest, message_id: str, claim_id: str) -> None:
    assert await queue.outcomes(claim_id, extend(message_id, HOUR)) == [Outcome.DONE]
    await queue.release(claim_id)


async def meet_a_lapse(queue: QueueUnderTest, *_: str) -> None:
    """The sweep ends the attempt, and writes that."""
    queue.advance(31 * MINUTE)
    await queue.sweep()


@together(
    [
        pytest.param("PUT", 0, EVENTS["post"], id="a-post"),
        pytest.param("POST", 0, ("ready", claim), id="a-claim"),
        pytest.param("POST", 1, EVENTS["release"], id="a-release"),
        pytest.param("POST", 1, ("claimed", renew), id="a-renewal"),
        pytest.param("POST", 0, EVENTS["edit"], id="an-edit"),
        pytest.param("PUT", 1, ("absent", edit_body), id="an-edit-of-the-body"),
        pytest.param("POST", 0, EVENTS["exposure"], id="a-delay-that-is-switched-off"),
        pytest.param("POST", 1, EVENTS["settlement"], id="a-message-given-back"),
        pytest.param("POST", 1, ("claimed", fail_one), id="a-failure"),
        pytest.param("POST", 1, ("claimed", extend_one), id="a-lease-of-one-message"),
        pytest.param("POST", 1, ("claimed", meet_a_lapse), id="a-lapse"),
    ]
)
async def test_what_hung_changes_nothing_that_another_holds(
    open_swift: OpenSwift, proxy: FaultyProxy, method: str, skip: int, event: Event
) -> None:
    """The write is repeated and the message claimed; then the first try comes."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    go = threading.Event()
    fault = proxy.fault(method, "/m/", pause=go, skip=skip)
    await happens(event, queue)
    holder = await queue.claim_id()
    await land(fault, go)
    assert (await queue.claim()).claim_id is None
    held = (await queue.get_claim(holder)).messages
    assert texts(held) == ["a"]
    assert not await queue.delete(*ids(held), claims=[holder])
    assert await queue.bodies() == []


@pytest.mark.parametrize("forced", [False, True])
async def test_a_deletion_that_hung_and_failed_takes_nothing_from_the_next_holder(
    open_swift: OpenSwift, proxy: FaultyProxy, forced: bool
) -> None:
    """An acknowledgement was answered 503 and its claim has lapsed: the message is another's."""
    queue = a_queue(await open_swift(proxy.url, options=FAILING))
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    go = threading.Event()
    fault = proxy.fault("DELETE", "/m/", pause=go)
    with pytest.raises(Unavailable):
        await queue.delete(message_id, claims=None if forced else [claim_id])
    queue.advance(11 * MINUTE)
    holder = await queue.claim_id()
    await land(fault, go)
    assert texts((await queue.get_claim(holder)).messages) == ["a"]


@together(
    [
        pytest.param("POST", "source/m/", id="the-mark-of-the-original"),
        pytest.param("PUT", "target/m/", id="the-copy"),
        pytest.param("DELETE", "source/m/", id="the-deletion-of-the-original"),
        pytest.param("POST", "target/m/", id="the-copy-that-is-shown"),
    ]
)
async def test_a_move_that_hung_changes_nothing_that_another_holds(
    open_swift: OpenSwift, proxy: FaultyProxy, method: str, place: str
) -> None:
    stores = await open_swift(proxy.url, options=QUICK)
    source, target = letter_box(stores)
    await source.post("letter")
    await source.release(await source.claim_id())
    go = threading.Event()
    fault = proxy.fault(method, place, pause=go)
    claimed = await source.claim(dead_letter=target.as_dead_letter_queue(1))
    assert (claimed.claim_id, claimed.moved) == (None, 1)
    holder = await target.claim_id()
    await land(fault, go)
    assert (await target.claim()).claim_id is None
    held = (await target.get_claim(holder)).messages
    assert texts(held) == ["letter"]
    assert not await target.delete(*ids(held), claims=[holder])
    assert await target.bodies() == await source.bodies() == []


@together(
    [
        pytest.param(give_back, "PUT", "/a/", id="the-attempt"),
        pytest.param(give_back, "POST", "/m/", id="a-release"),
        pytest.param(lambda one: extend(one, HOUR), "POST", "/m/", id="a-lease"),
        pytest.param(ack, "DELETE", "/m/", id="an-acknowledgement"),
        pytest.param(bury, "POST", "/m/", id="a-rejection"),
    ]
)
async def test_a_settlement_that_failed_changes_nothing_when_its_write_comes_late(
    open_swift: OpenSwift,
    proxy: FaultyProxy,
    act: Callable[[str], Settlement],
    method: str,
    place: str,
) -> None:
    """It was answered 503; the lease has lapsed, and the message is another's by then."""
    queue = a_queue(await open_swift(proxy.url, options=FAILING))
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    retries = RetryPolicy(queue.named("target").as_dead_letter_queue())
    go = threading.Event()
    fault = proxy.fault(method, place, pause=go)
    with pytest.raises(Unavailable):
        await queue.settle(claim_id, act(message_id), retries=retries)
    queue.advance(11 * MINUTE)
    holder = await queue.claim_id()
    await land(fault, go)
    (held,) = (await queue.get_claim(holder, details=True)).messages
    assert (held.id, held.claim_count, held.failure_count) == (message_id, 2, 1)
    assert [each.outcome.value for each in held.attempts] == ["lapsed"]
    assert (await queue.claim()).claim_id is None
    assert await queue.outcomes(holder, ack(message_id)) == [Outcome.DONE]
    assert await queue.bodies() == await queue.named("target").bodies() == []


def letter_box(stores: Stores) -> tuple[QueueUnderTest, QueueUnderTest]:
    """A queue, and the dead-letter queue of it."""
    source = a_queue(stores, "source")
    return source, QueueUnderTest(stores, QueueRef(source.ref.project, "target"))
