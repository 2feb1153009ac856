"""Swift failing in the ways it does: nothing is lost, nothing is handed out twice."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.contract.pausing import pause_after, stopped
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, give_back, ids, new, some, texts
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import OpenSwift, together
from zaqar_lite.domain.errors import ConfigurationError, NotFound, Unavailable
from zaqar_lite.storage.swift.connection import Fence
from zaqar_lite.storage.swift.objects import UNLOCKED

pytestmark = pytest.mark.anyio

MESSAGE, LISTING = "/m/", "^/[^/]+$"
QUICK = "&patience=0.3"
uses_quick = pytest.mark.usefixtures("nothing_is_late")
Entry = dict[str, str]
TEXTS = [str(number) for number in range(8)]


async def work_through(queue: QueueUnderTest) -> list[str]:
    """Claim and delete all there is; answer the texts in the order in which they came."""
    done: list[str] = []
    while (claimed := await queue.claim(3)).claim_id is not None:
        done += texts(claimed.messages)
        assert not await queue.delete(*ids(claimed.messages), claims=[claimed.claim_id])
    return done


@pytest.mark.parametrize(
    ("method", "what", "status"),
    [
        *[("POST", MESSAGE, status) for status in (401, 408, 409, 429, 498, 500, 503, 507)],
        *[(method, MESSAGE, 503) for method in ("PUT", "GET", "DELETE", "HEAD")],
        ("PUT", MESSAGE, 202),  # somebody's clock is ahead: a newer object is there, not ours
        ("GET", LISTING, 503),
    ],
)
async def test_what_passes_is_tried_again(
    queue: QueueUnderTest, proxy: FaultyProxy, method: str, what: str, status: int
) -> None:
    fault = proxy.fault(method, what, times=2, status=status)
    await queue.post("a", "b")
    assert await work_through(queue) == ["a", "b"]
    assert await queue.bodies() == []
    assert fault.hits == 2


async def test_a_rate_limit_says_how_long_to_wait(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    started = asyncio.get_running_loop().time()
    proxy.fault("PUT", MESSAGE, status=429, headers={"Retry-After": "1"})
    await queue.post("a")
    assert asyncio.get_running_loop().time() - started >= 1


async def test_a_write_whose_answer_is_lost_is_repeated_when_it_can_not_land_any_more(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    queue = a_queue(await open_swift(proxy.url, options="&timeout=1"))
    started = asyncio.get_running_loop().time()
    proxy.fault("PUT", MESSAGE, cut="before")
    await queue.post("a")
    assert asyncio.get_running_loop().time() - started >= Fence(timeout=1).lasts


async def test_a_token_that_ends_is_renewed_once_for_all_threads(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post(*TEXTS)
    proxy.kinds()
    proxy.end_tokens()
    assert texts((await queue.page()).messages) == TEXTS
    assert proxy.kinds()["AUTH"] == 1
    claiming = asyncio.create_task(queue.claim(8))
    await proxy.sees(lambda seen: seen.kind == "GET object")
    proxy.end_tokens()  # in the middle of a claim
    assert texts((await claiming).messages) == TEXTS
    assert proxy.kinds().get("AUTH", 0) <= 1  # writes need none


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_without_it(
    open_swift: OpenSwift, proxy: FaultyProxy, status: int
) -> None:
    if status != 401:  # which Swift itself answers
        proxy.fault("GET", "^/auth", status=status)
    with pytest.raises(ConfigurationError, match=str(status)) as error:
        await open_swift(proxy.url.replace("testing", "wrong-key"))
    assert "wrong-key" not in str(error.value)


@uses_quick
@together(
    pytest.param(method, cut, id=f"{method}, {cut}")
    for method in ("PUT", "GET", "POST", "DELETE")
    for cut in ("before", "after")
)
async def test_a_connection_that_ends_early_loses_and_doubles_nothing(
    open_swift: OpenSwift, proxy: FaultyProxy, method: str, cut: str
) -> None:
    queue = a_queue(await open_swift(proxy.url))
    proxy.fault(method, MESSAGE, times=3, cut=cut)
    posted = await queue.post(*TEXTS)
    assert ids(await queue.listed()) == posted
    assert await work_through(queue) == TEXTS


async def test_a_proxy_that_dies_and_comes_back_is_waited_for(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post(*TEXTS[:4])
    proxy.stop()
    posting = asyncio.create_task(queue.post(*TEXTS[4:]))
    claiming = asyncio.create_task(queue.claim(2))
    await asyncio.sleep(0.3)
    proxy.start()
    await posting
    claimed = await claiming
    assert texts(claimed.messages) == TEXTS[:2]
    assert await work_through(queue) == TEXTS[2:]


async def test_a_proxy_that_stays_away_is_told_as_unavailable(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    queue = a_queue(await open_swift(proxy.url.removesuffix("/auth/v1.0"), options=QUICK))
    await queue.post("a")
    proxy.stop()
    for step in (queue.bodies, queue.claim, queue.stats, queue.stores.messages.ping):
        with pytest.raises(Unavailable):
            await step()
    proxy.start()
    assert await queue.bodies() == ["a"]


async def test_a_message_that_is_gone_since_the_listing_is_passed_over(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    """404 between list and get; the claim goes on to the next one."""
    posted = await queue.post(*TEXTS)
    async with proxy.paused("GET", f"/{posted[0]}$", queue.claim(2)) as claiming:
        outside = proxy.fault("DELETE", f"/{posted[0]}$")  # sees it pass
        # Without the lock, as an expirer would: straight at the object.
        backend = queue.stores.messages._connection  # type: ignore[attr-defined]
        container = backend.containers.queue(queue.ref)
        await backend.swift.call("DELETE", container, f"m/{posted[0][:16]}/{posted[0]}")
        assert outside.hits == 1
    assert texts((await claiming).messages) == TEXTS[1:3]


async def test_a_post_that_fails_leaves_nothing_behind(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    queue = a_queue(await open_swift(proxy.url, options="&patience=0.3"))
    await queue.post("before")
    proxy.fault("PUT", MESSAGE, times=20, skip=2, status=503)
    with pytest.raises(Unavailable):
        await queue.post(*TEXTS)
    proxy.heal()
    assert await queue.bodies() == ["before"]
    await queue.post("after")
    assert await queue.bodies() == ["before", "after"]


@uses_quick
async def test_a_claim_hands_out_only_what_is_certainly_held(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """Where nobody can tell of a mark, the message waits until the claim lapses."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    posted = await queue.post("a", "b", "c")
    proxy.fault("POST", posted[1], times=20, cut="after")
    proxy.fault("HEAD", posted[1], times=20, cut="before")
    claimed = await queue.claim(3)
    assert texts(claimed.messages) == ["a", "c"]
    proxy.heal()
    assert (await queue.claim()).claim_id is None
    queue.advance(11 * 60_000)
    assert texts((await queue.claim()).messages) == ["a", "b", "c"]


@uses_quick
@pytest.mark.parametrize(("cut", "held"), [("after", ["a", "b", "c"]), ("before", ["a", "c"])])
async def test_a_mark_whose_answer_is_lost_is_told_by_the_object(
    open_swift: OpenSwift, proxy: FaultyProxy, cut: str, held: list[str]
) -> None:
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    posted = await queue.post("a", "b", "c")
    proxy.fault("POST", posted[1], times=20, cut=cut)
    claimed = await queue.claim(3)
    assert texts(claimed.messages) == held
    proxy.heal()
    assert texts((await queue.get_claim(claimed.claim_id or "")).messages) == held
    assert texts((await queue.claim()).messages) == [text for text in "abc" if text not in held]


@uses_quick
@pytest.mark.parametrize(
    ("fault", "popped"), [({"cut": "after"}, ["a", "b"]), ({"status": 503}, ["b"])]
)
async def test_a_pop_whose_answer_is_lost_loses_nothing(
    open_swift: OpenSwift, proxy: FaultyProxy, fault: dict[str, object], popped: list[str]
) -> None:
    """What may still be there goes to nobody, and what is certainly gone to its caller."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    posted = await queue.post("a", "b")
    proxy.fault("DELETE", posted[0], times=20, **fault)
    assert texts((await queue.pop()).messages) == popped
    proxy.heal()
    assert await queue.bodies() == [text for text in "ab" if text not in popped]


@uses_quick
@pytest.mark.parametrize("settles", [False, True])
async def test_who_waits_looks_again_when_messages_were_given_back_in_part(
    open_swift: OpenSwift, proxy: FaultyProxy, settles: bool
) -> None:
    """The caller is told 503; what is written by then is ready all the same."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    heard: list[int] = []
    posted = await queue.post("a", "b")
    claim_id = await queue.claim_id()
    await queue.stores.messages.watch(queue.ref, heard.append)
    proxy.fault("POST", posted[1], times=50, status=503)
    with pytest.raises(Unavailable):
        await (
            queue.settle(claim_id, *map(give_back, posted)) if settles else queue.release(claim_id)
        )
    assert sum(heard) >= 1
    proxy.heal()
    assert texts((await queue.claim()).messages) == ["a"]


async def test_a_claim_beside_the_search_for_what_is_due_does_not_end_it(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    """It forgets what was known of that, and finds the next instant only where it comes so far."""
    await queue.post("a")
    async with proxy.paused("GET", LISTING, queue.next_due()) as asking:
        await queue.claim(1)
    assert await asking


@uses_quick
async def test_a_claim_is_answered_though_letters_could_not_be_moved(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """What it holds is held; the sweep moves them."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    letters = queue.named("letters")
    await queue.post("letter")
    await queue.release(await queue.claim_id())
    await queue.post("good")
    proxy.fault("PUT", "letters/m/", times=20, status=503)
    claimed = await queue.claim(dead_letter=letters.as_dead_letter_queue(1))
    assert (texts(claimed.messages), claimed.moved) == (["good"], 0)
    proxy.heal()
    await queue.sweep()
    assert (await queue.claim(dead_letter=letters.as_dead_letter_queue(1))).claim_id is None
    assert texts((await letters.claim()).messages) == ["letter"]


@uses_quick
async def test_a_post_is_answered_though_the_tail_could_not_be_written_behind_it(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """All is stored by then. Readers pass it when a lease is over, or with the next post."""
    queue = a_queue(await open_swift(proxy.url, coordination_url=locks, options=QUICK))
    reader = queue.at(await open_swift(coordination_url=locks))
    await queue.post("older")
    proxy.fault("POST", "/l/tail", times=20, status=503)
    await queue.post("a")
    proxy.heal()
    assert await reader.bodies() == ["older"]
    assert texts((await reader.claim()).messages) == ["older", "a"]
    await reader.post("b")
    assert await reader.bodies() == ["older", "a", "b"]


@pytest.mark.parametrize("purge", [True, False])
async def test_what_lands_late_does_not_reach_the_queues_next_life(
    open_swift: OpenSwift, purge: bool
) -> None:
    """A message of before the purge, or of a dropped queue, that is written or listed late."""
    stores = await open_swift()
    queue = a_queue(stores)
    posted = await queue.post("a", "b", "c", batch_key="k")
    backend = stores.messages._connection  # type: ignore[attr-defined]
    container = backend.containers.queue(queue.ref)
    kept = {}
    for entry in await backend.objects.list(container):
        if entry.name != "l/tail":
            reply = await backend.objects.get(container, entry.name)
            kept[entry.name] = (reply.headers["Content-Type"], reply.body)
    await (queue.purge() if purge else queue.drop())
    await queue.sweep()
    for name, (kind, body) in kept.items():
        await backend.objects.put(container, name, kind, body, UNLOCKED)
    queue = queue.at(await open_swift())  # another process, which knows nothing
    assert await queue.bodies() == []
    assert await queue.counts() == (0, 0, 0)
    assert (await queue.claim()).claim_id is None
    assert not await queue.get(*posted)
    again = await queue.post_all([new(text) for text in "abc"], batch_key="k")
    assert again[0].duplicate == purge
    assert await queue.bodies() == ([] if purge else ["a", "b", "c"])
    await queue.sweep()
    left = await backend.objects.list(container, prefix="m/")
    assert len(left) == (0 if purge else 3)


async def test_nothing_is_left_of_a_queue_that_was_dropped_long_ago(open_swift: OpenSwift) -> None:
    stores = await open_swift()
    queue = a_queue(stores)
    await queue.post("a", "b", batch_key="k")
    await queue.claim(1)
    await queue.drop()
    await queue.sweep()
    backend = stores.messages._connection  # type: ignore[attr-defined]
    container = backend.containers.queue(queue.ref)
    assert [entry.name for entry in await backend.objects.list(container, prefix="l/")]
    queue.advance(2 * 60 * 60_000)
    await queue.sweep()
    await queue.sweep()
    assert not (await backend.swift.call("HEAD", container)).found
    await queue.post("c")
    assert await queue.bodies() == ["c"]


async def test_a_claim_whose_last_message_went_elsewhere_is_over_and_its_object_goes_in_time(
    open_swift: OpenSwift, locks: str
) -> None:
    """Acknowledged in part through another process: neither saw the last one of the claim."""
    queue = a_queue(await open_swift(coordination_url=locks))
    other = queue.at(await open_swift(coordination_url=locks))
    first, second = await queue.post("a", "b")
    await queue.post("c")
    ended, live = await queue.claim_id(2), await queue.claim_id(1, ttl=HOUR)
    await queue.delete(first, claims=[ended])
    await other.delete(second, claims=[ended])
    with pytest.raises(NotFound):
        await queue.get_claim(ended)
    backend = queue.stores.messages._connection  # type: ignore[attr-defined]
    container = backend.containers.queue(queue.ref)
    assert len(await backend.objects.list(container, prefix="c/")) == 2
    queue.advance(HOUR - MINUTE)
    await queue.sweep()
    (entry,) = await backend.objects.list(container, prefix="c/")
    assert entry.name == f"c/{live}"
    assert texts((await queue.get_claim(live)).messages) == ["c"]


async def test_a_claim_that_can_not_be_recorded_is_given_back(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    queue = a_queue(await open_swift(proxy.url, options="&patience=0.3"))
    await queue.post("a", "b")
    proxy.fault("PUT", "/c/", times=20, status=503)
    with pytest.raises(Unavailable):
        await queue.claim()
    proxy.heal()
    assert texts((await queue.claim()).messages) == ["a", "b"]


def listing(change: Callable[[list[Entry]], list[Entry]]) -> dict[str, object]:
    """A listing that is late: the change that it has not seen."""
    return {"edit": lambda body: json.dumps(change(json.loads(body))).encode(), "times": 20}


def first_seen() -> Callable[[list[Entry]], list[Entry]]:
    """Show for ever what was there at the first look."""
    old: list[Entry] = []

    def keep(entries: list[Entry]) -> list[Entry]:
        old[:] = old or entries
        return old

    return keep


async def test_a_listing_that_does_not_show_a_message_yet_only_delays_it(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    _, late, _ = await queue.post(*"abc")
    hid = (late, "/tail")
    proxy.fault("GET", LISTING, **listing(lambda e: [x for x in e if not x["name"].endswith(hid)]))
    assert await queue.counts() == (2, 0, 0)
    assert texts((await queue.claim(2)).messages) == ["a", "c"]
    proxy.heal()
    assert texts((await queue.claim(2)).messages) == ["b"]


async def test_a_listing_that_still_shows_what_was_deleted_brings_nothing_back(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    posted = await queue.post(*"abc")
    fault = proxy.fault("GET", LISTING, **listing(first_seen()))
    assert texts((await queue.page()).messages) == ["a", "b", "c"]
    await queue.delete(posted[0])
    assert texts((await queue.page()).messages) == ["b", "c"]
    assert texts((await queue.claim()).messages) == ["b", "c"]
    assert fault.hits >= 3


async def test_a_listing_that_shows_an_old_state_claims_nothing_twice(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    """The listing proposes, the object decides."""
    await queue.post(*"abc")
    fault = proxy.fault("GET", LISTING, **listing(first_seen()))
    assert texts((await queue.claim(2)).messages) == ["a", "b"]
    assert texts((await queue.claim(3)).messages) == ["c"]
    assert not (await queue.pop()).messages
    assert fault.hits == 3


async def test_a_listing_that_shows_a_raised_deadline_late_sweeps_nothing_alive(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post("a", ttl=5 * 60_000)
    await queue.claim(ttl=20 * 60_000)
    fault = proxy.fault("GET", r"^/[^/]+\.queue\.[^/]+$", **listing(_expired))
    queue.advance(6 * 60_000)
    await queue.stores.messages.sweep(100)
    proxy.heal()
    assert fault.hits
    assert await queue.bodies() == ["a"]


def _expired(entries: list[Entry]) -> list[Entry]:
    """The entries as they were before a claim raised the ttl: with an older deadline."""
    for entry in entries:
        if entry["name"].startswith("m/"):
            kind, *values = entry["content_type"].split(";")
            values = ["e=1" if value.startswith("e=") else value for value in values]
            entry["content_type"] = ";".join([kind, *values])
    return entries


async def test_a_request_that_swift_refuses_for_good_is_not_repeated(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    fault = proxy.fault("GET", LISTING, times=5, status=412)
    with pytest.raises(Unavailable, match="412"):
        await queue.bodies()
    assert fault.hits == 1


async def test_a_release_whose_lease_ends_meanwhile_loses_nothing(open_swift: OpenSwift) -> None:
    """One step writes both kinds of ends, and deletes only what was acknowledged."""
    queue = a_queue(await open_swift())
    await queue.post("a", "b")
    claim = await queue.claim(2, ttl=MINUTE)
    has_looked = pause_after(queue.stores.messages, "_held")
    async with stopped(has_looked, queue.release(some(claim.claim_id))):
        queue.advance(MINUTE + 1_000)
    assert await queue.bodies() == ["a", "b"]
    assert texts((await queue.claim(2)).messages) == ["a", "b"]


async def test_a_release_meets_a_claim_that_is_gone(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post("a")
    claim_id = await queue.claim_id()
    proxy.fault("DELETE", "/c/", times=1, cut="after")
    await queue.release(claim_id)
    with pytest.raises(NotFound):
        await queue.get_claim(claim_id)
    assert texts((await queue.claim()).messages) == ["a"]
