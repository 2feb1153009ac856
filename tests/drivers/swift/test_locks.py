"""The lock of a queue: lost, late, given up, and held by several processes at once."""

import asyncio
import signal
import threading

import pytest

from tests import services
from tests.contract.subject import HOUR, MINUTE, ids, texts
from tests.contract.test_processes import StartWorker
from tests.contract.test_processes import start_worker as start_worker  # noqa: PLC0414 - a fixture
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import OpenSwift
from zaqar_lite.domain.errors import ConfigurationError, QueueChanged, Unavailable
from zaqar_lite.domain.models import Capability, DelayMode, QueueRecord
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.storage.swift import changing, locks

pytestmark = pytest.mark.anyio

POST = "/m/"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordination service that is gone is noticed sooner than in production."""
    monkeypatch.setattr(locks, "_ANSWER", 1.0)


async def reached(fault_reached: threading.Event) -> None:
    assert await asyncio.to_thread(fault_reached.wait, 15)


async def test_a_claim_whose_coordinator_is_lost_is_refused_and_not_released(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """Redis dies and comes back empty in mid-claim; nobody gets a message that was marked."""
    with services.start_redis() as redis:
        first = a_queue(await open_swift(proxy.url, coordination_url=redis.url))
        second = first.at(await open_swift(coordination_url=redis.url))
        await first.post("a", "b")
        async with proxy.paused("POST", POST, first.claim(2)) as claiming:
            redis.restart()
        with pytest.raises(Unavailable, match="lock was lost"):
            await claiming
        assert (await second.claim()).claim_id is None
        assert await second.counts() == (0, 0, 2)
        second.advance(11 * 60_000)
        assert texts((await second.claim()).messages) == ["a", "b"]


async def test_what_was_stored_or_removed_is_answered_though_the_coordinator_is_lost(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """A post that was answered 503 would be sent again; what a pop has removed would be lost."""
    with services.start_redis() as redis:
        queue = a_queue(await open_swift(proxy.url, coordination_url=redis.url))
        await queue.post("a")
        for method, step in (("PUT", queue.post("b")), ("DELETE", queue.pop(1))):
            async with proxy.paused(method, POST, step) as doing:
                redis.restart()
            await doing
        assert await queue.bodies() == ["b"]


async def test_without_the_coordinator_reading_goes_on_and_claiming_does_not(
    open_swift: OpenSwift, caplog: pytest.LogCaptureFixture
) -> None:
    with services.start_redis() as redis:
        queue = a_queue(await open_swift(coordination_url=redis.url))
        posted = await queue.post("a", "b")
        redis.kill()
        for step in (queue.claim, queue.pop, queue.stores.messages.ping):
            with pytest.raises(Unavailable, match=r"written\. \("):
                await step()
        assert "coordination service" not in caplog.text, "who is refused says it"
        with pytest.raises(Unavailable):
            await queue.post("c")
        assert ids(await queue.listed()) == posted
        redis.restart()
        assert texts((await queue.claim()).messages) == ["a", "b"]


async def test_writing_stops_at_half_of_the_lease(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever comes next may hold the lock when the lease is over; nothing may land by then."""
    queue = a_queue(
        await open_swift(
            proxy.url,
            coordination_url=locks,
            options="&lease=5&timeout=1",
        )
    )
    await queue.post("a", "b")
    proxy.kinds()
    async with proxy.paused("GET", POST, queue.claim(), times=50) as claiming:
        await asyncio.sleep(3)  # the only real wait: a lease is of the coordination service's time
    with pytest.raises(Unavailable, match="lease"):
        await claiming
    assert "raise the option 'lease'" in caplog.text
    assert "POST object" not in proxy.kinds()
    assert texts((await queue.claim()).messages) == ["a", "b"]


async def test_a_caller_that_gives_up_leaves_no_thread_that_writes_without_the_lock(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    queue = a_queue(await open_swift(proxy.url))
    await queue.post(*"abc")
    async with proxy.paused("POST", POST, queue.claim(3)) as claiming:
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        other = asyncio.create_task(queue.claim(3))
        done, _ = await asyncio.wait([other], timeout=0.2)
        assert not done, "the lock was free while the first claim still wrote"
    assert (await other).claim_id is None
    assert await queue.counts() == (0, 0, 3)


async def test_an_unknown_coordination_service_is_told(open_swift: OpenSwift) -> None:
    with pytest.raises(ConfigurationError, match="coordination_url"):
        await open_swift(coordination_url="carrier-pigeon://loft")


async def test_what_a_store_promises_depends_on_its_lock(open_swift: OpenSwift, locks: str) -> None:
    alone = await open_swift()
    shared = await open_swift(coordination_url=locks)
    assert Capability.SHARED not in alone.messages.capabilities
    assert Capability.SHARED in shared.messages.capabilities


async def test_a_record_that_another_process_changed_is_not_acted_on(
    open_swift: OpenSwift, locks: str
) -> None:
    one, two = await open_swift(coordination_url=locks), await open_swift(coordination_url=locks)
    queue = a_queue(one)
    record, _ = await one.management.create_queue(queue.ref, {}, max_queues=10)
    await queue.post("a", version=record.version)
    await two.management.update_queue(QueueRecord(queue.ref, {"k": 1}, record.version))
    with pytest.raises(QueueChanged):
        await queue.claim(version=record.version)
    with pytest.raises(QueueChanged):
        await queue.post("b", version=record.version)


async def test_a_process_that_dies_with_the_lock_leaves_it_free(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, start_worker: StartWorker
) -> None:
    """Killed in the middle of a claim: what it had marked lapses, the rest is there at once."""
    through = a_queue(await open_swift(proxy.url, coordination_url=locks))
    posted = await through.post(*"abcd", ttl=2 * HOUR)
    direct = through.at(await open_swift(coordination_url=locks))
    claimer = await start_worker(through, 0)
    assert await claimer.hear() == "ready"
    go = threading.Event()
    fault = proxy.fault("POST", POST, pause=go, cut="before")
    await claimer.report()
    await reached(fault.reached)
    claimer._process.kill()
    await claimer._process.wait()
    go.set()
    found = ids((await direct.claim(10)).messages)
    assert set(found) <= set(posted)
    assert posted[0] in found or posted[1] in found
    direct.advance(HOUR + MINUTE)
    assert ids((await direct.claim(10)).messages) == posted


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_process_that_is_stopped_past_its_lease_holds_nothing_twice(
    open_swift: OpenSwift, proxy: FaultyProxy, start_worker: StartWorker, method: str
) -> None:
    """Stopped while it reads, it marks nothing any more; while it marks, what is marked stays."""
    with services.start_redis() as redis:
        short = "&lease=5&timeout=1"
        through = a_queue(await open_swift(proxy.url, coordination_url=redis.url, options=short))
        posted = ["a", "b"]
        await through.post(*posted, ttl=2 * HOUR)
        claimer = await start_worker(through, 0)
        assert await claimer.hear() == "ready"
        go = threading.Event()
        # Both marks are on their way: else the second is sent or not, as the stop finds it.
        paused = 2 if method == "POST" else 1
        faults = [proxy.fault(method, POST, pause=go) for _ in range(paused)]
        await claimer.report()
        for fault in faults:
            await reached(fault.reached)
        claimer._process.send_signal(signal.SIGSTOP)
        go.set()
        while not all(fault.landed for fault in faults):  # noqa: ASYNC110 - the proxy is a thread
            await asyncio.sleep(0.01)
        # On a busy machine the lease may be over by then, and Swift refuses the marks.
        stays = method == "POST" and {*faults[0].landed, *faults[1].landed} == {202}
        other = through.at(await open_swift(coordination_url=redis.url, options=short))
        claimed = await other.claim()  # waits until the lease is over
        claimer._process.send_signal(signal.SIGCONT)
        await claimer.report()
        assert await claimer._process.wait() == 1, "its claim was not refused"
        assert (await other.claim()).claim_id is None
        if not stays:
            assert texts(claimed.messages) == posted
            held = await other.get_claim(claimed.claim_id or "")
            assert texts(held.messages) == posted
            claims = [claimed.claim_id or ""]
            assert not await other.delete(*ids(claimed.messages), claims=claims)
        else:
            assert claimed.claim_id is None
            other.advance(HOUR + MINUTE)
            assert texts((await other.claim()).messages) == posted


async def test_a_clock_that_differs_from_swifts_is_refused(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """With others by 2 seconds, because deadlines are the lock holder's; reading goes on."""
    queue = a_queue(await open_swift(proxy.url, coordination_url=locks))
    await queue.post("a")
    proxy.ahead = 10
    await queue.bodies()
    for step in (queue.claim, queue.pop, queue.purge):
        with pytest.raises(Unavailable, match="NTP"):
            await step()
    assert await queue.bodies() == ["a"]
    with pytest.raises(ConfigurationError, match="NTP"):
        await open_swift(proxy.url, coordination_url=locks)
    proxy.ahead = -10
    await queue.bodies()
    with pytest.raises(Unavailable, match="NTP"):
        await queue.claim()
    proxy.ahead = 0
    await queue.bodies()
    assert texts((await queue.claim()).messages) == ["a"]


async def test_a_sweep_whose_clock_is_ahead_ends_nothing(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """It would take what lives for expired, and leases that go on for lapsed."""
    keeper = a_queue(await open_swift(coordination_url=locks))
    sweeper = keeper.at(await open_swift(proxy.url, coordination_url=locks))
    await keeper.post("held")
    claim_id = await keeper.claim_id(ttl=MINUTE)
    await keeper.post("alive", ttl=MINUTE)
    backend = sweeper.stores.messages._connection  # type: ignore[attr-defined]
    # Else Swift refuses what is signed by a time that is not its own.
    backend.swift.fence.key = None
    sweeper.advance(2 * MINUTE)
    proxy.ahead = -120
    await sweeper.bodies()
    await sweeper.sweep()
    assert await keeper.bodies() == ["held", "alive"]
    assert texts((await keeper.get_claim(claim_id)).messages) == ["held"]


async def test_a_sweep_beside_the_first_post_leaves_the_queue_its_tail(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """It found an empty container; without the tail others would see the message a minute late."""
    poster = a_queue(await open_swift(proxy.url, coordination_url=locks))
    sweeper = poster.at(await open_swift(coordination_url=locks))
    async with proxy.paused("PUT", POST, poster.post("a")) as posting:
        sweeping = asyncio.create_task(sweeper.sweep())
        await asyncio.sleep(0.5)  # it waits for the lock
    await asyncio.gather(posting, sweeping)
    reader = poster.at(await open_swift(coordination_url=locks))
    assert await reader.bodies() == ["a"]


async def test_a_process_that_is_alone_needs_its_clock_for_the_broom_alone(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    proxy.ahead = 60
    queue = a_queue(await open_swift(proxy.url))
    await queue.post("a")
    assert texts((await queue.claim()).messages) == ["a"]
    proxy.ahead = 200
    with pytest.raises(ConfigurationError, match="NTP"):
        await open_swift(proxy.url)


async def test_exposing_may_take_longer_than_a_lease(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It frees the lock between its steps, so no step comes near half of the lease."""
    monkeypatch.setattr(changing, "_STEP", 1)
    queue = a_queue(
        await open_swift(
            proxy.url,
            coordination_url=locks,
            options="&lease=8&timeout=2",
        )
    )
    await queue.post(*"abcdef", delay=MINUTE)
    proxy.fault("POST", "/m/", times=6, delay=0.8)
    assert await queue.release_delayed() == 6
    assert await queue.counts() == (6, 0, 0)


async def test_a_letter_that_is_seen_can_be_claimed(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """To show letters is the last that is done to their queue while its lock is held."""
    queue = a_queue(await open_swift(proxy.url, coordination_url=locks))
    letters = queue.named("letters")
    await queue.post(*"abc")
    await queue.release(await queue.claim_id())
    proxy.seen.clear()
    assert (await queue.claim(dead_letter=letters.as_dead_letter_queue(1))).moved == 3
    done = [(seen.method, seen.path) for seen in proxy.seen if ".letters/" in seen.path]
    assert ("POST", "l/tail") in {(method, path.split("/", 2)[2]) for method, path in done[:-3]}
    assert all(method == "POST" and "/m/" in path for method, path in done[-3:])


@pytest.mark.parametrize("shared", [False, True])
async def test_who_waits_for_letters_does_not_wait_for_all_that_move(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, shared: bool
) -> None:
    """Between two steps the lock is free for longer than others wait before they ask again."""
    place = locks if shared else None
    queue = a_queue(await open_swift(proxy.url, coordination_url=place))
    letters = queue.named("letters")
    other = letters.at(await open_swift(coordination_url=place)) if shared else letters
    await queue.post(*map(str, range(20)))
    await queue.release(await queue.claim_id(20))
    first, second = threading.Event(), threading.Event()
    step = proxy.fault("DELETE", f"{queue.ref.name}/m/", pause=first)
    proxy.fault("DELETE", f"{queue.ref.name}/m/", pause=second, skip=9)
    moving = asyncio.create_task(queue.claim(20, dead_letter=letters.as_dead_letter_queue(1)))
    await reached(step.reached)
    claiming = asyncio.create_task(other.claim(50))
    done, _ = await asyncio.wait([claiming], timeout=0.2)
    assert not done, "a move holds the lock of its target"
    first.set()
    assert len((await claiming).messages) == 10
    second.set()
    assert (await moving).moved == 20


@pytest.mark.parametrize("shared", [False, True])
async def test_moves_in_both_directions_do_not_wait_for_each_other(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, shared: bool
) -> None:
    """Nor do they and a claim that sends dead letters, whose locks come in one order.

    Each would hold one lock and wait for the other, until it gives up after twenty seconds.
    """
    place = locks if shared else None
    queue = a_queue(await open_swift(proxy.url, coordination_url=place))
    letters = queue.named("letters")
    other = letters.at(await open_swift(coordination_url=place)) if shared else letters
    await queue.post("exhausted")
    await queue.release(await queue.claim_id())
    (moved,) = await queue.post("moved", delay=MINUTE)
    (back,) = await letters.post("back")
    policy = letters.as_dead_letter_queue(1)
    claim = queue.claim(mode=DelayMode.HONOUR, dead_letter=policy)
    # It holds its queue's lock.
    async with proxy.paused("GET", rf"\.{queue.ref.name}/m/", claim) as claiming:
        moves = queue.move(letters, moved), other.move(queue, back)
        moving = [asyncio.create_task(move) for move in moves]
        await asyncio.sleep(0.3)
    async with asyncio.timeout(15):
        assert (await claiming).moved == 1
        assert await asyncio.gather(*moving) == [[Outcome.DONE], [Outcome.DONE]]
    assert sorted(await letters.bodies()) == ["exhausted", "moved"]
    assert await queue.bodies() == ["back"]


async def test_a_process_that_takes_the_lock_again_and_again_lets_others_have_it(
    open_swift: OpenSwift, locks: str
) -> None:
    """The others ask for it ten times a second, and it is free for a moment only."""
    busy, other = [
        (await open_swift(coordination_url=locks)).messages._connection.locks  # type: ignore[attr-defined]
        for _ in range(2)
    ]

    async def take_again_and_again() -> None:
        while True:
            async with busy.hold("queue"):
                await asyncio.sleep(0.4)

    taking = asyncio.create_task(take_again_and_again())
    await asyncio.sleep(0.1)
    started = asyncio.get_running_loop().time()
    async with other.hold("queue"):
        assert asyncio.get_running_loop().time() - started < 6
    while not taking.done():  # Python 3.11's `wait_for` may lose a cancellation
        taking.cancel()
        await asyncio.wait([taking], timeout=1)
