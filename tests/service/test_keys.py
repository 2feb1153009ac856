"""Keys, and the throttle of those who guess them."""

import asyncio
import time
from typing import Any, cast

import pytest

from tests.failing import failing
from tests.service.composed import Failing
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, TooMany, Unauthenticated, Unavailable
from zaqar_lite.domain.identity import INTERNAL_PROJECTS, How, Principal
from zaqar_lite.domain.models import Record, StoreOptions
from zaqar_lite.service.identity import authentication, login_throttle
from zaqar_lite.service.identity import keys as module
from zaqar_lite.service.identity.authentication import Authenticator, Credential, Place
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.service.identity.login_throttle import LookupLimits, site_of
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio

OPERATOR = Principal(How.KEY, None)
CLOCK = Clock()


@pytest.fixture
def management() -> ManagementStore:
    return create("memory://", clock=CLOCK, options=StoreOptions())[1]


async def test_a_project_has_a_thousand_keys_at_most(management: ManagementStore) -> None:
    for number in range(module.MAX_KEYS - 1):
        await management.put_record(module.LISTED, "p", f"{number:016x}", b"{}", expected=None)
    keys = Keys(management, CLOCK)
    await keys.create(OPERATOR, "p", ["*:*"])
    with pytest.raises(Invalid, match="1000 keys"):
        await keys.create(OPERATOR, "p", ["*:*"])
    key, _ = await keys.create(OPERATOR, "other", ["*:*"])
    assert key.hash
    assert key.hash not in repr(key)


def bearer(text: str) -> Credential:
    return Credential(Place.BEARER, text)


@pytest.mark.parametrize(
    ("fails_at", "stays_away"), [(1, False), (2, False), (1, True), (2, True), (3, True)]
)
async def test_a_rotation_that_fails_changes_nothing(
    management: ManagementStore, fails_at: int, stays_away: bool
) -> None:
    """The writes: the list, the key, and the old key."""
    store = Failing(management)
    keys = Keys(cast(ManagementStore, store), CLOCK)
    old, old_text = await keys.create(OPERATOR, "p", ["*:*"])
    store.writes, store.fails_at, store.stays_away = 0, fails_at, stays_away
    with pytest.raises(Unavailable):
        await keys.rotate(OPERATOR, old.id, overlap=60)
    store.fails_at = 0
    listed = await keys.list_keys(OPERATOR, "p", marker=None, limit=10)
    assert old.id in {key.id for key in listed}
    if fails_at < 3:  # else there is one whose secret nobody has seen
        assert [(key.id, key.expires_at) for key in listed] == [(old.id, None)]
    assert (await keys.authenticate(bearer(old_text))).expires_at is None
    _, text = await keys.rotate(OPERATOR, old.id, overlap=60)
    await keys.authenticate(bearer(text))


@pytest.mark.parametrize("overlap", [0, 60])
async def test_a_rotation_whose_last_answer_is_lost_leaves_a_key(
    management: ManagementStore, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    keys = Keys(management, CLOCK)
    old, _ = await keys.create(OPERATOR, "p", ["*:*"])
    put, lost = management.put_record, iter((False, False, True, False))

    async def store(*given: Any, **more: Any) -> Record:
        record = await put(*given, **more)
        if next(lost):
            raise Unavailable("The store did not answer.")
        return record

    monkeypatch.setattr(management, "put_record", store)
    new, text = await keys.rotate(OPERATOR, old.id, overlap=overlap)
    assert (await keys.authenticate(bearer(text))).user == new.id
    assert (await keys.get(OPERATOR, old.id)).expires_at is not None


@pytest.mark.parametrize("project", sorted(INTERNAL_PROJECTS))
async def test_no_key_is_made_for_a_project_of_the_server_itself(
    management: ManagementStore, project: str
) -> None:
    keys = Keys(management, CLOCK)
    with pytest.raises(Invalid, match="project id"):
        await keys.create(OPERATOR, project, ["*:*"])


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_name_without_a_key_hides_no_key_behind_it(
    management: ManagementStore, limit: int
) -> None:
    keys = Keys(management, CLOCK)
    made = sorted([(await keys.create(OPERATOR, "p", ["*:*"]))[0].id for _ in range(6)])
    for missing in (made[0], made[2], made[3]):
        await management.delete_record(module.KIND, module.NO_PROJECT, missing)
    found: list[str] = []
    marker = None
    while page := await keys.list_keys(OPERATOR, "p", marker=marker, limit=limit):
        assert len(page) <= limit
        found += [key.id for key in page]
        marker = found[-1]
    assert found == [made[1], made[4], made[5]]


async def test_who_gave_up_waiting_lets_nobody_else_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "LONGEST", 0.02)
    pace = LookupLimits(60)

    async def go() -> None:
        async with pace.turn("192.0.2.1"):
            pass

    async with pace.turn("192.0.2.1"):
        for _ in range(2):
            with pytest.raises(TooMany):
                await asyncio.wait_for(go(), 5)
    await go()


async def test_an_address_gets_more_turns_at_a_time_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login_throttle, "LONGEST", 60.0)  # however busy the machine is
    pace, inside, most = LookupLimits(60), 0, 0

    async def go() -> None:
        nonlocal inside, most
        async with pace.turn("192.0.2.1"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(go() for _ in range(200)))
    assert most == 16
    many = (go() for _ in range(16 + 256 + 1))
    told = await asyncio.gather(*many, return_exceptions=True)
    assert [type(one) for one in told if one is not None] == [TooMany]


async def test_suspected_addresses_share_one_turn_in_each_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login_throttle, "LONGEST", 60.0)  # however busy the machine is
    pace = LookupLimits(600)  # a pause is a tenth of a second

    async def fail(number: int) -> None:
        with pytest.raises(Unauthenticated):
            async with pace.turn(f"192.0.2.{number}"):
                raise Unauthenticated("wrong")

    for _ in range(2):  # at first nobody is suspected
        begun = time.monotonic()
        await asyncio.gather(*map(fail, range(3)))
    assert time.monotonic() - begun >= 0.199


async def test_delayed_refusals_are_answered_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLOWED", 0.0), ("_LATE_A_SECOND", 20), ("LATEST", 0.2)):
        monkeypatch.setattr(authentication, name, value)
    authenticator, begun = Authenticator([], 10, Clock()), time.monotonic()
    await asyncio.gather(*(authenticator.delay_refusal() for _ in range(500)))
    assert 0.149 <= time.monotonic() - begun < 20


async def test_a_key_that_is_disabled_while_it_is_looked_up_signs_nothing_afterwards(
    management: ManagementStore,
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(Failing):
        async def get_record(self, *args: Any) -> Record | None:
            found: Record | None = await management.get_record(*args)
            if not begun.is_set():
                begun.set()
                await goes_on.wait()
            return found

    keys = Keys(cast(ManagementStore, Slow(management)), CLOCK)
    key, _ = await keys.create(OPERATOR, "p", ["*:*"])
    looking = asyncio.create_task(keys.signer(key.id))
    await begun.wait()
    await keys.set_disabled(OPERATOR, key.id, True)
    goes_on.set()
    await looking
    with pytest.raises(Unauthenticated):
        await keys.signer(key.id)


async def test_a_key_that_is_disabled_during_its_rotation_has_no_successor(
    management: ManagementStore,
) -> None:
    other = Keys(management, CLOCK)

    class Disabling(Failing):
        async def put_record(self, *args: Any, **more: Any) -> Record:
            if args[0] == module.LISTED:
                await other.set_disabled(OPERATOR, old.id, True)
            return await super().put_record(*args, **more)

    old, _ = await other.create(OPERATOR, "p", ["*:*"])
    keys = Keys(cast(ManagementStore, Disabling(management)), CLOCK)
    with pytest.raises(Invalid, match="disabled"):
        await keys.rotate(OPERATOR, old.id, overlap=60)
    assert [key.id for key in await keys.list_keys(OPERATOR, "p", marker=None, limit=10)] == [
        old.id
    ]


async def test_a_store_that_is_away_is_no_failure_of_an_address(
    management: ManagementStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = failing(Unavailable("The store did not answer."))
    keys = Keys(management, CLOCK)
    _, text = await keys.create(OPERATOR, "p", ["*:*"])
    authenticator = Authenticator([keys], 4, CLOCK)  # two tries at once
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(management, "get_record", away)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await authenticator.identify(bearer(text), "192.0.2.1")
    assert (await authenticator.identify(bearer(text), "192.0.2.1")).project == "p"


def test_what_counts_as_one_client() -> None:
    assert site_of("192.0.2.1") == site_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert site_of("::ffff:192.0.2.1") != site_of("::ffff:192.0.2.2")
    assert site_of("2001:db8::1%eth0") == site_of("2001:db8::2") != site_of("2001:db8:0:1::1")
