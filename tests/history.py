"""A history of what clients did and were told, and the promises it must not break.

    history = History()
    async with history.client(url, "worker-1") as client: await client.run(stop)
    history.end(await everything_in_the_queue(url))
    assert history.violations() == []

Every operation is noted with the instant before it was sent and the instant after it was answered;
one without an answer may or may not have happened. The checks are conservative: they report only
what no order of the operations within those instants could explain. The clock of the client and
the server's are the same machine's.
"""

import asyncio
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import httpx

from tests.server import ServerProcess

NEVER = float("inf")
NO_LIMIT = 1 << 30
CLAIM_TTL = 60
ENOUGH = 20
"""Kills after which every habit of the clients has had its turn, however busy the machine is."""
_HEADERS = {"Client-ID": "00000000-0000-0000-0000-000000000001", "X-Project-Id": "history"}


@dataclass(slots=True)
class Post:
    """A message that was posted: `answered` is None when nobody knows whether it was stored."""

    text: str
    delay: float
    invoked: float
    answered: float | None = None


@dataclass(slots=True)
class Hold:
    """A message that a claim handed out; `given_up` is when its holder first let it go."""

    text: str
    claim: str
    invoked: float
    answered: float
    ttl: float
    given_up: float = NEVER

    @property
    def surely_until(self) -> float:
        """The message was certainly held from `answered` until here."""
        return min(self.invoked + self.ttl, self.given_up)


@dataclass(slots=True)
class Delete:
    """A message that was deleted: `answered` is None when nobody knows."""

    text: str
    invoked: float
    answered: float | None = None


@dataclass(slots=True)
class Failure:
    """A message that was given back as failed, with a delay; `answered` as for a delete."""

    text: str
    delay: float
    invoked: float
    answered: float | None = None


class Limits(NamedTuple):
    """The `_max_claim_count` and the `_max_failures` of a run's queue."""

    claims: int = NO_LIMIT
    failures: int = NO_LIMIT


class Counts(NamedTuple):
    """How often a message was handed out and failed; why and since when it is a dead letter."""

    claims: int
    failures: int
    reason: str | None = None
    moved_at: float = 0

    def is_spent(self, limits: Limits) -> bool:
        """Whether the reason is one of the two limits, and that limit is reached."""
        if self.reason == "max_failures":
            return self.failures >= limits.failures
        return self.reason == "max_claims" and self.claims >= limits.claims


@dataclass
class History:
    """What all clients did; `remaining` is what the queues held in the end, dead letters too.

    `rejects` are messages that were sent to the dead letters. `dead` are the letters that are there
    in the end; nobody claims those. `counts` are those that the server shows in the end of what is
    in the queue, None when nobody asked. `unanswered` are the instants of claims without an answer,
    which may have taken messages. `queues` are those that were posted to, in the order of their
    first posts.
    """

    posts: dict[str, Post] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    deletes: dict[str, list[Delete]] = field(default_factory=lambda: defaultdict(list))
    failures: list[Failure] = field(default_factory=list)
    unanswered: list[float] = field(default_factory=list)
    rejects: list[Delete] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    dead: dict[str, Counts] = field(default_factory=dict)
    remaining: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counts] | None = None
    ended: float = NEVER
    queues: dict[str, None] = field(default_factory=dict)
    restarts: int = 0
    stops: int = 0

    def end(self, texts: Collection[str]) -> None:
        """Note what the queues hold when all clients have stopped."""
        self.remaining = Counter(texts)
        self.ended = time.time()

    def end_with_counts(
        self, found: Sequence[tuple[str, Counts]], letters: Sequence[tuple[str, Counts]] = ()
    ) -> None:
        """Note what the queue and its dead-letter queue hold, and the counts that they show."""
        self.end([text for text, _ in (*found, *letters)])
        self.counts, self.dead = dict(found), dict(letters)

    def violations(self) -> list[str]:
        """Tell every promise that was broken."""
        return [
            *self._lost(),
            *self._invented(),
            *self._undone(),
            *self._two_holders(),
            *self._early(),
            *self._hasty(),
            *self._forgotten(),
            *self._overcounted(),
            *self._unburied(),
            *self._exceeded(),
        ]

    def summary(self) -> str:
        """Count what was done, for the report of a run."""
        acknowledged = sum(post.answered is not None for post in self.posts.values())
        deleted = sum(d.answered is not None for ds in self.deletes.values() for d in ds)
        return (
            f"{self.restarts} kills, {self.stops} stops, {acknowledged} acknowledged posts, "
            f"{len(self.holds)} holds, {deleted} acknowledged deletes, "
            f"{self.remaining.total()} remaining, "
            f"{len(self._acknowledged_failures())} acknowledged failures, "
            f"{sum(each.answered is not None for each in self.rejects)} acknowledged rejects, "
            f"{len(self.dead)} dead letters, {self._spent()} of them by a limit"
        )

    def _spent(self) -> int:
        return sum(counts.is_spent(self.limits) for counts in self.dead.values())

    def _lost(self) -> list[str]:
        return [
            f"lost: {post.text}, acknowledged at {post.answered}"
            for post in self.posts.values()
            if post.answered is not None
            and not self.remaining[post.text]
            and post.text not in self.deletes
        ]

    def _invented(self) -> list[str]:
        seen = Counter(dict.fromkeys({hold.text for hold in self.holds}, 1)) | self.remaining
        return [
            f"invented: {text}, {count} times"
            for text, count in seen.items()
            if text not in self.posts or count > 1
        ]

    def _undone(self) -> list[str]:
        found = []
        holds = self._holds_by_text()
        for text, deletes in self.deletes.items():
            gone = min((d.answered for d in deletes if d.answered is not None), default=NEVER)
            if gone < NEVER and self.remaining[text]:
                found.append(f"undone: {text}, deleted at {gone}, is there in the end")
            found += [
                f"undone: {text}, deleted at {gone}, was handed out by {hold.claim} afterwards"
                for hold in holds[text]
                if hold.invoked > gone
            ]
        return found

    def _two_holders(self) -> list[str]:
        return [
            f"two holders: {text}, {first.claim} since {first.answered} and {second.claim}"
            for text, holds in self._holds_by_text().items()
            for first in holds
            for second in holds
            if first is not second
            and second.invoked > first.answered
            and second.answered < first.surely_until
        ]

    def _holds_by_text(self) -> dict[str, list[Hold]]:
        by_text: dict[str, list[Hold]] = defaultdict(list)
        for hold in self.holds:
            by_text[hold.text].append(hold)
        return by_text

    def _early(self) -> list[str]:
        return [
            f"early: {hold.text}, handed out at {hold.answered}"
            for hold in self.holds
            if (post := self.posts.get(hold.text)) is not None
            and hold.answered < post.invoked + post.delay
        ]

    def _acknowledged_failures(self) -> list[tuple[Failure, float]]:
        return [(each, each.answered) for each in self.failures if each.answered is not None]

    def _hasty(self) -> list[str]:
        holds = self._holds_by_text()
        return [
            f"hasty: {each.text}, given back at {answered} for {each.delay} s, was handed out by "
            f"{hold.claim} at {hold.answered}"
            for each, answered in self._acknowledged_failures()
            for hold in holds[each.text]
            if hold.invoked > answered and hold.answered < each.invoked + each.delay
        ]

    def _forgotten(self) -> list[str]:
        if self.counts is None:
            return []
        told = Counter(each.text for each, _ in self._acknowledged_failures())
        known = {text: counts.failures for text, counts in (self.counts | self.dead).items()}
        return [
            f"forgotten: {text} failed {count} times, and {known.get(text, 0)} are known"
            for text, count in told.items()
            if self.remaining[text] and known.get(text, 0) < count
        ]

    def _overcounted(self) -> list[str]:
        """Counts beyond what the clients did and a lost answer or a lapsed lease can explain."""
        holds = self._holds_by_text()
        told = Counter(each.text for each in self.failures)
        found = []
        for text, counts in ((self.counts or {}) | self.dead).items():
            post = self.posts.get(text)
            unknown = [each for each in self.unanswered if post and each > post.invoked]
            claims = len(holds[text]) + len(unknown)
            lapsed = sum(hold.invoked + hold.ttl < self.ended for hold in holds[text])
            lapsed += sum(each + CLAIM_TTL < self.ended for each in unknown)
            if counts.claims > claims:
                found.append(f"overcounted: {text}, claimed {claims} times at most, {counts}")
            if counts.failures > told[text] + lapsed:
                most = told[text] + lapsed
                found.append(f"overcounted: {text}, failed {most} times at most, {counts}")
        return found

    def _unburied(self) -> list[str]:
        told = {each.text: each.answered for each in self.rejects if each.answered is not None}
        rejected = {each.text for each in self.rejects}
        return [
            *(f"unburied: {text} is no dead letter" for text in told if text not in self.dead),
            *(
                f"unburied: {text}, which nobody rejected and no limit ended, {counts}"
                for text, counts in self.dead.items()
                if text not in rejected and not counts.is_spent(self.limits)
            ),
            *(
                f"unburied: {hold.text}, rejected at {told[hold.text]}, was handed out afterwards"
                for hold in self.holds
                if hold.text in told and hold.invoked > told[hold.text]
            ),
        ]

    def _exceeded(self) -> list[str]:
        """Messages that were in use beyond a limit of their queue."""
        holds, limits = self._holds_by_text(), self.limits
        ends: dict[str, list[float]] = defaultdict(list)
        for failure, answered in self._acknowledged_failures():
            ends[failure.text].append(answered)
        last = {
            text: sorted(found)[limits.failures - 1]
            for text, found in ends.items()
            if len(found) >= limits.failures
        }
        return [
            *(
                f"exceeded: {text} was handed out {len(found)} times"
                for text, found in holds.items()
                if len(found) > limits.claims
            ),
            *(
                f"exceeded: {text}, failed for good at {end}, was handed out by {hold.claim}"
                for text, end in last.items()
                for hold in holds[text]
                if hold.invoked > end
            ),
            *(
                f"exceeded: {text} is no dead letter with {counts}"
                for text, counts in (self.counts or {}).items()
                if counts.failures >= limits.failures
            ),
        ]


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a recording client works: what it chooses from, each time anew.

    A `delay` other than 0 is kept by delayed queues only. A consumer takes its claims from the
    queues that somebody has posted to. One that `settles` says of each message what becomes of it:
    deleted, given back as failed for `wait` seconds, held for longer or, where its queue has
    dead letters, now and then sent there.
    """

    project: str = "history"
    sizes: Sequence[int] = (1, 1, 5)
    delays: Sequence[int] = (0, 0, 1)
    limit: int = 5
    settles: bool = False
    rejects: bool = False
    wait: int = 1


class RecordingClient:
    """Posts, claims, deletes and releases at random over HTTP, and notes all of it."""

    def __init__(
        self,
        history: History,
        url: str,
        queues: str | Sequence[str],
        client_id: str,
        seed: int,
        *,
        habits: Habits | None = None,
    ) -> None:
        self._history = history
        self._queues = (queues,) if isinstance(queues, str) else queues
        self._random = random.Random(seed)
        self._count = 0
        self._habits = habits or Habits()
        self._name = f"{client_id[:8]}-{seed}"
        headers = {"Client-ID": client_id, "X-Project-Id": self._habits.project}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30)

    def note_answers(self, note: Callable[[httpx.Response], Awaitable[None]]) -> None:
        """Call `note` with every answer."""
        self._http.event_hooks = {"response": [note]}

    async def close(self) -> None:
        """Close the connections; `run` does it too."""
        await self._http.aclose()

    async def run(self, *, produces: bool) -> None:
        """Work until the server goes away."""
        try:
            while True:
                if produces:
                    await self.post(self._random.choice(self._habits.sizes))
                else:
                    await self._consume()
        except httpx.TransportError:
            return
        finally:
            await self.close()

    async def post(self, size: int) -> None:
        """Post a batch of `size` messages to one of the queues."""
        posts = []
        for _ in range(size):
            self._count += 1
            delay = self._random.choice(self._habits.delays)
            posts.append(Post(f"{self._name}-{self._count}", delay, time.time()))
        for post in posts:
            self._history.posts[post.text] = post
        messages = [{"body": post.text, "delay": int(post.delay)} for post in posts]
        queue = self._random.choice(self._queues)
        self._history.queues[queue] = None
        path = f"/v2/queues/{queue}/messages"
        answer = await self._http.post(path, json={"messages": messages})
        if answer.status_code == 201:
            for post in posts:
                post.answered = time.time()

    async def _consume(self) -> None:
        queue = f"/v2/queues/{self._random.choice(list(self._history.queues) or self._queues)}"
        invoked = time.time()
        self._history.unanswered.append(invoked)
        answer = await self._http.post(
            f"{queue}/claims",
            params={"limit": self._habits.limit},
            json={"ttl": CLAIM_TTL, "grace": 60},
        )
        answered = time.time()
        if answer.status_code in (201, 204):
            self._history.unanswered.remove(invoked)
        if answer.status_code != 201:
            await asyncio.sleep(0.02)
            return
        claim = answer.headers["Location"].rsplit("/", 1)[1]
        held = {}
        for message in answer.json()["messages"]:
            hold = Hold(message["body"], claim, invoked, answered, CLAIM_TTL)
            self._history.holds.append(hold)
            held[message["id"] if "id" in message else _id(message["href"])] = hold
        if self._habits.settles and self._random.random() < 0.5:
            await self._settle(queue, claim, held)
            return
        if self._random.random() < 0.25:
            await self._release(queue, claim, list(held.values()))
            return
        for message_id, hold in held.items():
            if self._random.random() < 0.9:
                await self._delete(queue, message_id, claim, hold)

    async def _release(self, queue: str, claim: str, holds: list[Hold]) -> None:
        for hold in holds:
            hold.given_up = time.time()
        await self._http.delete(f"{queue}/claims/{claim}")

    async def _settle(self, queue: str, claim: str, held: dict[str, Hold]) -> None:
        """Settle each message of a claim in its own way, in one request."""
        invoked, wait, ttl = time.time(), self._habits.wait, 2 * CLAIM_TTL
        deletes: dict[str, Delete] = {}
        failures: dict[str, Failure] = {}
        extended: dict[str, Hold] = {}
        rejects: dict[str, Delete] = {}
        for message_id, hold in held.items():
            act = self._random.random()
            if act < 0.1:
                extended[message_id] = hold
                continue
            hold.given_up = invoked
            if act < 0.5:
                deletes[message_id] = Delete(hold.text, invoked)
            elif self._habits.rejects and act < 0.6:
                rejects[message_id] = Delete(hold.text, invoked)
            else:
                failures[message_id] = Failure(hold.text, wait, invoked)
        for delete in deletes.values():
            self._history.deletes[delete.text].append(delete)
        self._history.failures += failures.values()
        self._history.rejects += rejects.values()
        answer = await self._http.post(
            f"{queue}/claims/{claim}/settle",
            json={
                "delete": list(deletes),
                "release": [{"id": each, "delay": wait, "failed": True} for each in failures],
                "extend": [{"id": each, "ttl": ttl} for each in extended],
                "dead": [{"id": each, "reason": "rejected"} for each in rejects],
            },
        )
        if answer.status_code != 200:
            return
        for result in answer.json()["results"]:
            message_id = result["id"]
            if result["status"] != 204:
                continue
            if message_id in extended:
                extended[message_id].ttl = invoked + ttl - extended[message_id].invoked
            else:
                settled = deletes.get(message_id) or rejects.get(message_id) or failures[message_id]
                settled.answered = time.time()

    async def _delete(self, queue: str, message_id: str, claim: str, hold: Hold) -> None:
        delete = Delete(hold.text, time.time())
        hold.given_up = delete.invoked
        self._history.deletes[hold.text].append(delete)
        answer = await self._http.delete(
            f"{queue}/messages/{message_id}", params={"claim_id": claim}
        )
        if answer.status_code == 204:
            delete.answered = time.time()


def at_work(
    history: History,
    url: str,
    queues: str | Sequence[str],
    *,
    count: int = 8,
    habits: Habits | None = None,
) -> list[asyncio.Task[None]]:
    """Let clients work until the server goes away; every other one posts."""
    chosen = habits or Habits(settles=True, rejects=True)
    clients = [
        RecordingClient(history, url, queues, str(uuid.uuid4()), seed, habits=chosen)
        for seed in random.sample(range(1 << 32), count)
    ]
    return [
        asyncio.create_task(client.run(produces=number % 2 == 0))
        for number, client in enumerate(clients)
    ]


async def kill_again_and_again(store: str, rounds: int) -> History:
    """kill -9 a server over a store at random moments under eight clients; check the promises.

    With 0 violations in n rounds, the chance of one in a round is below 3/n with 95 % confidence
    (the rule of three).
    """
    history = History(limits=Limits(claims=3, failures=2))
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    server = ServerProcess(store)
    try:
        for number in range(rounds):
            await asyncio.to_thread(server.start)
            if number == 0:
                await make_queue(server.url, queue, history.limits)
            work = at_work(history, server.url, queue)
            await asyncio.sleep(random.uniform(0.3, 1.5))
            server.kill()
            await asyncio.gather(*work)
            history.restarts += 1
        await asyncio.to_thread(server.start)
        await note_end(history, server.url, queue)
        server.kill()
    finally:
        server.close()
    print(history.summary())
    assert history.violations() == []
    assert history.holds
    assert any(post.answered for post in history.posts.values())
    if rounds >= ENOUGH:
        assert any(failure.answered for failure in history.failures)
        assert any(reject.answered for reject in history.rejects)
    return history


async def make_queue(url: str, queue: str, limits: Limits | None = None) -> None:
    """Make a queue that delays messages, with a dead-letter queue that `note_end` reads too."""
    metadata: dict[str, object] = {
        "_default_message_delay": 1,
        "_dead_letter_queue": f"{queue}-letters",
    }
    if limits is not None:
        metadata |= {"_max_claim_count": limits.claims, "_max_failures": limits.failures}
    async with httpx.AsyncClient(base_url=url, headers=_HEADERS, timeout=30) as http:
        (await http.put(f"/v2/queues/{queue}", json=metadata)).raise_for_status()


async def note_end(history: History, url: str, queue: str, *, patience: float = 75) -> None:
    """Note what a queue of `make_queue` and its dead-letter queue hold when all clients stopped.

    A message whose lease lapses meanwhile may be listed in both: it is where it has moved to. What
    seems to be broken is looked at again for `patience` seconds, because some stores take up to a
    minute to bring a dead letter whose way a kill cut short.
    """
    until = time.monotonic() + patience
    while True:
        began = int(time.time())  # the server tells whole seconds
        found = await _with_counts(url, queue)
        letters = await _with_counts(url, f"{queue}-letters")
        moved = {text for text, counts in letters if counts.moved_at >= began}
        history.end_with_counts([one for one in found if one[0] not in moved], letters)
        if time.monotonic() > until or not history.violations():
            return
        await asyncio.sleep(5)


async def everything(url: str, queue: str, project: str = "history") -> list[str]:
    """All messages of a queue, claimed and delayed ones too."""
    return [message["body"] for message in await _listed(url, queue, project)]


async def _with_counts(url: str, queue: str) -> list[tuple[str, Counts]]:
    found = []
    for message in await _listed(url, queue, "history"):
        counts = Counts(message["claim_count"], message["failure_count"])
        if letter := message["dead_letter"]:
            at = datetime.fromisoformat(letter["moved_at"]).timestamp()
            counts = counts._replace(reason=letter["reason"], moved_at=at)
        found.append((message["body"], counts))
    return found


async def _listed(url: str, queue: str, project: str) -> list[dict[str, Any]]:
    headers = _HEADERS | {"X-Project-Id": project}
    found: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        path = (
            f"/v2/queues/{queue}/messages?limit=20&echo=true&include_claimed=true"
            "&include_delayed=true&details=true"
        )
        while True:
            page = (await http.get(path)).raise_for_status().json()
            if not page["messages"]:
                return found
            found += page["messages"]
            path = next(link["href"] for link in page["links"] if link["rel"] == "next")


def _id(href: str) -> str:
    return href.split("?", 1)[0].rsplit("/", 1)[1]
