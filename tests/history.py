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
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

NEVER = float("inf")
CLAIM_TTL = 60


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


@dataclass
class History:
    """What all clients did; `remaining` is what the queues held in the end, dead letters too.

    `rejects` are messages that were sent to the dead letters, of which `dead` are there in the end;
    nobody claims those. `failed` is how often each that remains is said to have failed. `queues`
    are those that were posted to, in the order of their first posts.
    """

    posts: dict[str, Post] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    deletes: dict[str, list[Delete]] = field(default_factory=lambda: defaultdict(list))
    failures: list[Failure] = field(default_factory=list)
    rejects: list[Delete] = field(default_factory=list)
    dead: Counter[str] = field(default_factory=Counter)
    remaining: Counter[str] = field(default_factory=Counter)
    failed: dict[str, int] | None = None
    queues: dict[str, None] = field(default_factory=dict)
    restarts: int = 0

    def end(
        self,
        texts: Collection[str],
        failed: dict[str, int] | None = None,
        dead: Collection[str] = (),
    ) -> None:
        """Note what the queue and its dead-letter queue hold when all clients have stopped.

        `failed` is how often each message in the queue has failed.
        """
        self.dead = Counter(dead)
        self.remaining = Counter(texts) + self.dead
        self.failed = failed

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
            *self._unburied(),
        ]

    def summary(self) -> str:
        """Count what was done, for the report of a run."""
        acknowledged = sum(post.answered is not None for post in self.posts.values())
        deleted = sum(d.answered is not None for ds in self.deletes.values() for d in ds)
        return (
            f"{self.restarts} kills, {acknowledged} acknowledged posts, {len(self.holds)} holds, "
            f"{deleted} acknowledged deletes, {self.remaining.total()} remaining, "
            f"{len(self._acknowledged_failures())} acknowledged failures, "
            f"{sum(each.answered is not None for each in self.rejects)} acknowledged rejects, "
            f"{self.dead.total()} dead letters"
        )

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
        failed = self.failed
        if failed is None:
            return []
        told = Counter(each.text for each, _ in self._acknowledged_failures())
        return [
            f"forgotten: {text} failed {count} times, and {failed.get(text, 0)} are known"
            for text, count in told.items()
            if self.remaining[text] and not self.dead[text] and failed.get(text, 0) < count
        ]

    def _unburied(self) -> list[str]:
        told = {each.text: each.answered for each in self.rejects if each.answered is not None}
        rejected = {each.text for each in self.rejects}
        return [
            *(f"unburied: {text} is no dead letter" for text in told if not self.dead[text]),
            *(f"unburied: {text}, which nobody rejected" for text in self.dead.keys() - rejected),
            *(
                f"unburied: {hold.text}, rejected at {told[hold.text]}, was handed out afterwards"
                for hold in self.holds
                if hold.text in told and hold.invoked > told[hold.text]
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
        answer = await self._http.post(
            f"{queue}/claims",
            params={"limit": self._habits.limit},
            json={"ttl": CLAIM_TTL, "grace": 60},
        )
        answered = time.time()
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


async def everything(url: str, queue: str, project: str = "history") -> list[str]:
    """All messages of a queue, claimed and delayed ones too."""
    return [message["body"] for message in await _listed(url, queue, project)]


async def failure_counts(url: str, queue: str, project: str = "history") -> dict[str, int]:
    """How often each message of a queue has failed."""
    listed = await _listed(url, queue, project)
    return {message["body"]: message["failure_count"] for message in listed}


async def _listed(url: str, queue: str, project: str) -> list[dict[str, Any]]:
    headers = {"Client-ID": "00000000-0000-0000-0000-000000000001", "X-Project-Id": project}
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
