"""Every driver against the model (`reference.py`): the same operations, the same answers.

ZAQAR_TEST_MODEL_EXAMPLES sets the number of runs, and has a failure shrunk; without it each driver
has a small one of its own. The steps of a run are drawn by weight, and act mostly on what is there.
(A state machine of hypothesis leaves out half of its rules in each run: most calls found nothing to
act on.)

Ids and positions differ between two stores, so messages and claims are named by the order in which
they came to be. All spans of time are chosen so that no two deadlines are ever near each other: how
fast a store is decides nothing.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.contract import reference
from tests.contract.comparing import UNIT, About, Fate, Side
from tests.contract.stores import DriverCase, Stores, run_hook
from tests.contract.subject import new
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, Invalid, NotFound
from zaqar_lite.domain.models import (
    NO_LIMIT,
    Capability,
    DelayMode,
    Message,
    QueueRecord,
    StoreOptions,
)
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.domain.settlements import Act, Outcome, Settlement

STEP_EXTRA, CLAIM_EXTRA, GRACE_EXTRA, DELAY_EXTRA = 500_000, 170_000, 90_000, 110_000
PARK_EXTRA, EXTEND_EXTRA = 130_000, 210_000
MOST_ADVANCES = 10
STEPS = 30
OPTIONS = StoreOptions(idempotency_window_ms=2 * UNIT)
ALL = 1_000
QUEUES = ("delayed", "normal", "dead")

queues = st.sampled_from(QUEUES)
sources = st.sampled_from(QUEUES[:2])
units = st.integers(1, 4)
clients = st.sampled_from(["ann", "bob"])
keys = st.sampled_from([None, None, None, "k", "l"])
picks = st.lists(st.integers(0, 200), min_size=1, max_size=3)
texts = st.sampled_from([None, "why", "wärum 🧀\n"])

policies = st.sampled_from(
    [
        *(None, None, (1, None, NO_LIMIT), (2, None, NO_LIMIT), (1, 3 * UNIT, NO_LIMIT)),
        *((NO_LIMIT, None, 1), (NO_LIMIT, 3 * UNIT, 2), (3, None, 2)),
    ]
)
backoffs = st.sampled_from([None, None, (1,), (2, 1), (1, 2, 3)])
fates = st.tuples(policies, backoffs)
acts = st.sampled_from([Act.ACK, *[Act.RELEASE] * 4, *[Act.EXTEND] * 2, Act.DEAD])
Wish = tuple[int, Act, int | None, bool, str | None]
"""A settlement: of which message, what, the delay in units, whether it failed, and why."""
wishes = st.lists(
    st.tuples(st.integers(0, 200), acts, st.none() | st.integers(0, 3), st.booleans(), texts),
    min_size=1,
    max_size=4,
)


Step = tuple[str, dict[str, Any]]
"""A method of Comparison, and what to call it with."""
DoesStep = TypeVar("DoesStep", bound=Callable[..., None])
_DRAWN: dict[str, st.SearchStrategy[dict[str, Any]]] = {}
_OFTEN: list[str] = []


def step(*, often: int = 1, **drawn: st.SearchStrategy[Any]) -> Callable[[DoesStep], DoesStep]:
    """Make a method a step, with arguments that are drawn; `often` is its weight."""

    def register(does: DoesStep) -> DoesStep:
        _DRAWN[does.__name__] = st.fixed_dictionaries(drawn)
        _OFTEN.extend([does.__name__] * often)
        return does

    return register


def steps() -> st.SearchStrategy[list[Step]]:
    """Draw what to do."""
    named = st.sampled_from(_OFTEN).flatmap(lambda name: st.tuples(st.just(name), _DRAWN[name]))
    return st.lists(named, min_size=STEPS, max_size=STEPS)


class Comparison:
    """Do the same to both stores and compare what they answer."""

    def __init__(self, runner: asyncio.Runner, driver: Stores, model: Stores) -> None:
        self.runner = runner
        project = f"model-{uuid4().hex[:12]}"
        self.sides = (Side(model, project), Side(driver, project))
        self.advances = 0
        self.posts = 0
        # Where each claim was made, and what it handed out.
        self.claim_places: list[str] = []
        self.claim_messages: list[list[int]] = []

    def run(self, chosen: Sequence[Step]) -> None:
        """Begin, take all steps, and compare all that there is then."""
        self.begin()
        for name, drawn in chosen:
            getattr(self, name)(**drawn)
        self.compare_all()
        self.both(self._clear)

    @staticmethod
    async def _clear(side: Side) -> None:
        for name in QUEUES:
            await side.queue(name).drop()

    def both(self, act: Callable[[Side], Awaitable[Any]]) -> Any:
        """Act on both sides; answer what both answered."""
        expected, answered = (self.runner.run(self._outcome(act, side)) for side in self.sides)
        assert answered == expected
        return expected

    @staticmethod
    async def _outcome(act: Callable[[Side], Awaitable[Any]], side: Side) -> Any:
        try:
            return await act(side)
        except (NotFound, Conflict, Invalid) as exc:
            return type(exc).__name__

    @property
    def record(self) -> QueueRecord:
        return self.sides[0].records["delayed"]

    def there(self) -> list[tuple[str, Message]]:
        """The messages that there are and that have been seen, with their queues."""
        model, found = self.sides[0], []
        for name in QUEUES:
            listed = self.runner.run(model.queue(name).listed())
            found += [(name, one) for one in listed if one.id in model.messages]
        return found

    def pick_message(
        self, name: str, number: int, wanted: Callable[[str, Message], object] = lambda *_: True
    ) -> tuple[str, int]:
        """A queue and one of its messages, mostly; now and then one that is not there."""
        found = [(place, one) for place, one in self.there() if wanted(place, one)]
        if not found or number % 7 == 0:
            return name, number
        place, one = found[number % len(found)]
        return place, self.sides[0].messages.add(one.id)

    def pick_messages(self, name: str, numbers: Sequence[int]) -> tuple[str, list[int]]:
        """A queue and some of its messages, mostly."""
        place, first = self.pick_message(name, numbers[0])
        others = [self.pick_message(place, n, lambda of, _: of == place)[1] for n in numbers[1:]]
        return place, [first, *others]

    def pick_claim(self, name: str, number: int) -> tuple[str, int]:
        """A queue and a claim that holds some of its messages, mostly."""
        claims = self.sides[0].claims
        live = sorted({(claims.add(one.claim_id), at) for at, one in self.there() if one.claim_id})
        if not live or number % 5 == 0:
            places = self.claim_places
            return places[number % len(places)] if places and number % 7 else name, number
        claim, place = live[number % len(live)]
        return place, claim

    def limit(self, name: str, wanted: int) -> int:
        """How many to take; all, where it is not promised which ones come first."""
        model = self.sides[0]
        free = model.is_ordered(name) and not self.runner.run(model.has_lapsed(name))
        return wanted if free else ALL

    def note_claim(self, name: str, answer: tuple[Any, ...]) -> None:
        """Remember where a claim was made and what it handed out."""
        claim, messages, _ = answer
        if claim is not None:
            self.claim_places.append(name)
            self.claim_messages.append([message[0] for message in messages])

    def begin(self) -> None:
        async def act(side: Side) -> None:
            for name in QUEUES:
                await side.create(name)
            await side.update("delayed", delay=60, exposing=False)

        self.both(act)
        for name in QUEUES[:2]:  # a run that begins with nothing would mostly find nothing
            self.store(name, [new(text, ttl=9 * UNIT) for text in "abcd"])
        late = [new("late", ttl=9 * UNIT, delay=n * UNIT + DELAY_EXTRA) for n in (1, 2)]
        self.store("delayed", late)

    @step(
        often=6,
        name=st.sampled_from(["delayed", "normal", *QUEUES]),
        drafts=st.lists(st.tuples(units, st.integers(0, 2), keys), min_size=1, max_size=4),
        batch_key=keys,
        client=clients,
        urgent=st.booleans(),
        copied=st.booleans(),
    )
    def post(
        self,
        *,
        name: str,
        drafts: list[tuple[int, int, str | None]],
        batch_key: str | None,
        client: str,
        urgent: bool,
        copied: bool,
    ) -> None:
        self.posts += 1
        waits = name == "delayed" and self.record.is_delayed
        fans_out = Capability.FAN_OUT in self.sides[1].stores.messages.capabilities
        headers = {"n": str(self.posts)} if self.posts % 3 == 0 else None
        messages = [
            new(
                # What has a key is often repeated as it was, and now and then is another message.
                f"{key or batch_key or self.posts}-{0 if self.posts % 4 else number}",
                ttl=ttl * UNIT,
                delay=delay * UNIT + DELAY_EXTRA if delay and waits else 0,
                key=key,
                headers=headers,
                priority=50 if urgent and fans_out else 100,
            )
            for number, (ttl, delay, key) in enumerate(drafts)
        ]
        # Elsewhere a copy may have the id of its message, so the two could not be told apart.
        copied = copied and self.sides[1].stores.case.package == "sql"
        self.store(name, messages, client=client, batch_key=batch_key, copied=copied)

    def store(
        self,
        name: str,
        messages: list[NewMessage],
        *,
        client: str = "ann",
        batch_key: str | None = None,
        copied: bool = False,
    ) -> None:
        async def act(side: Side) -> list[tuple[int, bool]]:
            ttl_ms = messages[-1].ttl_ms  # that of one message, so that others end before or after
            copy = Copy(side.queue("delayed" if name == "normal" else "normal").ref, ttl_ms, 0, 70)
            posted = await side.queue(name).post_all(
                [replace(one, copies=(copy,) if copied else ()) for one in messages],
                client=client,
                batch_key=batch_key,
                version=side.version(name),
            )
            return [(side.messages.add(answer.id), answer.duplicate) for answer in posted]

        self.both(act)

    @step(
        often=6,
        name=queues,
        limit=st.integers(1, 4),
        ttl=units,
        grace=st.integers(0, 2),
        client=clients,
        fate=fates,
        details=st.booleans(),
        removes=st.sampled_from([False, False, True]),
    )
    def claim(
        self,
        *,
        name: str,
        limit: int,
        ttl: int,
        grace: int,
        client: str,
        fate: Fate,
        details: bool,
        removes: bool,
    ) -> None:
        limit = self.limit(name, limit)

        async def act(side: Side) -> tuple[Any, ...]:
            retries = side.retries(name, fate)
            claimed = await side.queue(name).claim(
                limit,
                ttl=ttl * UNIT + CLAIM_EXTRA,
                grace=grace * UNIT + GRACE_EXTRA,
                client=client,
                mode=side.mode(name),
                exposing=side.exposing(name),
                dead_letter=retries.dead_letter,
                backoff=retries.backoff,
                version=side.version(name),
                details=details,
                removes=removes,
            )
            return side.show_claimed(name, claimed)

        self.note_claim(name, self.both(act))

    @step(often=2, name=sources)
    def use_up(self, name: str) -> None:
        """Claim what is ready and let it go at once: one step nearer to the dead letters."""

        async def act(side: Side) -> tuple[Any, ...]:
            claimed = await side.queue(name).claim(
                ALL, mode=side.mode(name), exposing=side.exposing(name), ttl=UNIT + CLAIM_EXTRA
            )
            await side.queue(name).release(claimed.claim_id or "0" * 32)
            return side.show_claimed(name, claimed)

        self.note_claim(name, self.both(act))

    @step(often=2, name=queues, number=st.integers(0, 50), details=st.booleans())
    def get_claim(self, name: str, number: int, details: bool) -> None:
        name, number = self.pick_claim(name, number)

        async def act(side: Side) -> tuple[Any, ...]:
            claim = await side.queue(name).get_claim(side.claims.pick(number), details=details)
            held = side.show_all(claim.messages, ordered=name != "dead")
            return side.claim(claim.id), claim.ttl_ms, About(claim.age_ms), held

        self.both(act)

    @step(often=3, name=queues, number=st.integers(0, 50), delay=st.sampled_from([0, 0, 1, 2]))
    def release(self, name: str, number: int, delay: int) -> None:
        name, number = self.pick_claim(name, number)
        delay_ms = delay * UNIT + PARK_EXTRA if delay else 0
        self.both(lambda side: side.queue(name).release(side.claims.pick(number), delay=delay_ms))

    @step(
        often=4,
        name=queues,
        number=st.integers(0, 50),
        chosen=wishes,
        ttl=units,
        fate=fates,
    )
    def settle(
        self,
        *,
        name: str,
        number: int,
        chosen: list[Wish],
        ttl: int,
        fate: Fate,
    ) -> None:
        """Settle mostly what the claim handed out, and now and then other messages."""
        if not self.claim_places:
            return
        name, number = self.pick_claim(name, number)
        handed_out = self.claim_messages[number % len(self.claim_messages)]

        def settlement(side: Side, wish: Wish) -> Settlement:
            pick, act, delay, failed, text = wish
            message = pick if pick % 7 == 0 else handed_out[pick % len(handed_out)]
            return Settlement(
                side.messages.pick(message),
                act,
                delay_ms=delay * UNIT + PARK_EXTRA if delay else delay,
                failed=failed,
                reason=text,
                detail=text,
                ttl_ms=ttl * UNIT + EXTEND_EXTRA,
                grace_ms=GRACE_EXTRA,
            )

        async def act(side: Side) -> tuple[Any, ...]:
            told = [settlement(side, wish) for wish in chosen]
            settled = await side.queue(name).settle(
                side.claims.pick(number),
                *{one.message_id: one for one in told}.values(),
                retries=side.retries(name, fate),
                version=side.version(name),
            )
            return list(settled.outcomes), settled.moved

        self.both(act)

    @step(often=3, name=sources, chosen=wishes, ttl=units, fate=fates)
    def work(
        self,
        name: str,
        chosen: list[Wish],
        ttl: int,
        fate: Fate,
    ) -> None:
        """Claim, and settle at once, while the claim is sure to be live."""
        self.claim(
            name=name,
            limit=4,
            ttl=ttl,
            grace=0,
            client="ann",
            fate=(None, fate[1]),
            details=True,
            removes=False,
        )
        self.settle(name=name, number=1, chosen=chosen, ttl=ttl, fate=fate)

    @step(often=2, name=sources, meeting=st.integers(0, 2), fate=fates)
    def lapse(self, name: str, meeting: int, fate: Fate) -> None:
        """Let a claim lapse, and let a claim, a pop or the sweep meet it."""
        if self.advances == MOST_ADVANCES:
            return

        def claim(*, removes: bool = False) -> None:
            self.claim(
                name=name,
                limit=2,
                ttl=1,
                grace=0,
                client="bob",
                fate=fate,
                details=True,
                removes=removes,
            )

        claim()
        self.advance(1)
        if meeting == 0:
            self.sweep(fate)
        else:
            claim(removes=meeting == 1)

    @step(often=2, name=queues, number=st.integers(0, 50), ttl=units, grace=st.integers(0, 2))
    def renew(self, name: str, number: int, ttl: int, grace: int) -> None:
        name, number = self.pick_claim(name, number)
        self.both(
            lambda side: side.queue(name).renew(
                side.claims.pick(number),
                ttl=ttl * UNIT + CLAIM_EXTRA,
                grace=grace * UNIT + GRACE_EXTRA,
            )
        )

    @step(often=2, name=queues, numbers=picks, claims=st.none() | st.just([]) | picks)
    def delete(self, name: str, numbers: list[int], claims: list[int] | None) -> None:
        name, numbers = self.pick_messages(name, numbers)
        claims = None if claims is None else [self.pick_claim(name, one)[1] for one in claims]

        async def act(side: Side) -> list[tuple[int, str]]:
            refused = await side.queue(name).delete(
                *[side.messages.pick(number) for number in numbers],
                claims=None if claims is None else [side.claims.pick(number) for number in claims],
            )
            return sorted((side.messages.add(each.id), each.reason.value) for each in refused)

        self.both(act)

    @step(
        often=4,
        name=sources,
        number=st.integers(0, 200),
        text=st.none() | st.just("edited"),
        ttl=st.none() | units,
        delay=st.none() | st.integers(0, 3),
    )
    def edit(
        self, name: str, number: int, text: str | None, ttl: int | None, delay: int | None
    ) -> None:
        def is_delayed(_: str, one: Message) -> bool:
            return (one.delay_expires_at or 0) > one.now

        if not self.record.is_delayed:  # an edit is refused before it comes to the store
            return
        if text is not None:  # a copy that has expired holds the body until a sweep has met it
            self.sweep((None, None))
        name, number = self.pick_message(name, number, is_delayed)

        async def act(side: Side) -> tuple[Any, ...]:
            edited = await side.queue(name).edit(
                side.messages.pick(number),
                text,
                ttl=None if ttl is None else ttl * UNIT,
                delay=delay * UNIT + DELAY_EXTRA if delay else delay,
                version=side.version(name),
            )
            return side.show(edited)

        self.both(act)

    @step(
        often=4,
        name=queues,
        to=queues,
        numbers=picks,
        ttl=units,
        delay=st.booleans(),
        reset=st.booleans(),
    )
    def move(
        self, *, name: str, to: str, numbers: list[int], ttl: int, delay: bool, reset: bool
    ) -> None:
        name, numbers = self.pick_messages(name, numbers)
        waits = to == "delayed" and self.record.is_delayed and delay

        async def act(side: Side) -> list[Outcome]:
            return await side.queue(name).move(
                side.queue(to),
                *dict.fromkeys(side.messages.pick(number) for number in numbers),
                ttl=ttl * UNIT,
                delay=UNIT + DELAY_EXTRA if waits else 0,
                reset=reset,
            )

        if to != name:
            self.both(act)

    @step(often=3, number=st.integers(0, 3))
    def advance(self, number: int) -> None:
        if self.advances == MOST_ADVANCES:
            return
        self.advances += 1
        for side in self.sides:
            side.stores.clock.advance(number * UNIT + STEP_EXTRA)

    @step(often=2, fate=fates)
    def sweep(self, fate: Fate) -> None:
        async def act(side: Side) -> None:  # what there is to tidy is the driver's own affair
            retries = {side.queue(name).ref: side.retries(name, fate) for name in QUEUES}
            await side.queue("normal").sweep(retries)

        self.both(act)

    @step(often=2, on=st.sampled_from([True, True, False]))
    def switch_delay(self, on: bool) -> None:
        exposing = not on and self.record.delay_mode is not DelayMode.IGNORE
        self.both(lambda side: side.update("delayed", delay=60 * on, exposing=exposing))

    @step(often=2, most=st.integers(1, 3))
    def drain(self, most: int) -> None:
        if not self.record.exposing:
            return

        async def act(side: Side) -> None:  # those whose delay was over may be counted or not
            while await side.queue("delayed").release_delayed(most) == most:
                pass
            await side.update("delayed", delay=0, exposing=False)

        self.both(act)

    @step(name=queues)
    def purge(self, name: str) -> None:
        self.both(lambda side: side.queue(name).purge())

    @step(name=queues)
    def drop_and_make_again(self, name: str) -> None:
        async def act(side: Side) -> None:
            await side.queue(name).drop()
            await side.create(name)

        self.both(act)

    @step(often=2, name=queues, numbers=picks, details=st.booleans())
    def get(self, name: str, numbers: list[int], details: bool) -> None:
        name, numbers = self.pick_messages(name, numbers)

        async def act(side: Side) -> list[tuple[Any, ...]]:
            wanted = [side.messages.pick(number) for number in numbers]
            found = await side.queue(name).get(*wanted, details=details)
            return side.show_all(found, ordered=False)

        self.both(act)

    @step(
        often=3,
        name=queues,
        limit=st.integers(1, 4),
        exclude=st.none() | clients,
        claimed=st.booleans(),
        delayed=st.booleans(),
    )
    def list_pages(
        self, name: str, limit: int, exclude: str | None, claimed: bool, delayed: bool
    ) -> None:
        async def act(side: Side) -> list[tuple[Any, ...]]:
            found = await side.queue(name).listed(
                limit=limit,
                exclude=exclude,
                claimed=claimed,
                delayed=delayed or not side.records[name].is_delayed,
            )
            return side.show_all(found, ordered=name != "dead")

        self.both(act)

    @step(often=2)
    def compare_all(self) -> None:
        async def act(side: Side) -> list[Any]:
            found = []
            for name in QUEUES:
                queue = side.queue(name)
                stats = await queue.stats()
                listed = await queue.listed(details=True)
                messages = side.show_all(listed, ordered=name != "dead")
                ends = [
                    None if end is None or name == "dead" else side.messages.add(end.id)
                    for end in (stats.oldest, stats.newest)
                ]
                counts = (stats.ready, stats.delayed, stats.claimed, stats.bytes)
                found.append((counts, messages, ends))
            return found

        self.both(act)


def test_the_driver_answers_as_the_model_does(
    case: DriverCase, store_uri: str, tmp_path: Path
) -> None:
    wanted = os.environ.get("ZAQAR_TEST_MODEL_EXAMPLES")
    opened: list[Stores] = []
    options = StoreOptions(
        idempotency_window_ms=OPTIONS.idempotency_window_ms, extra=case.make_extra(tmp_path)
    )
    with asyncio.Runner() as runner:
        driver = runner.run(Stores.open(case, store_uri, Clock(), options, opened))

        @settings(
            max_examples=int(wanted or case.model_examples),
            deadline=None,
            # To shrink a failure takes minutes, and hides it where the test's time is over then.
            phases=(Phase.generate, Phase.shrink) if wanted else (Phase.generate,),
            derandomize=bool(os.environ.get("CI")) and not wanted,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(steps())
        def compare(chosen: list[Step]) -> None:
            clock = Clock()
            clock.advance(driver.clock.offset_ms)
            messages, records = reference.create(clock, OPTIONS)
            model = Stores(case, "the model", clock, OPTIONS, messages, records, [])
            Comparison(runner, driver, model).run(chosen)

        try:
            compare()
            runner.run(run_hook(driver))
        finally:
            for stores in opened:
                runner.run(stores.close())
