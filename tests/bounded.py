"""Watch a server while everything large happens at once: `python -m tests.bounded --store URI`.

A greedy tenant sends the largest of every request that is allowed. A crowd of clients mixes batches
of 1 to 5,000 messages over many queues and records every answer. A backlog of exhausted and expired
messages falls due at one instant. Nothing may be lost, and nothing may be there twice.

A measuring tenant meanwhile posts, lists, claims and deletes one message at a time. The report
shows its p99 before the others began and beside them. It also shows how much CPU the server used,
for any client, while each of these requests waited: on a busy machine only that can be compared.
`--pid` adds the CPU of a store's own server, such as Redis.

The defaults are the sizes of a full run; `--scale 0.01` takes a hundredth of them (for Swift).
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.greedy import Greedy
from tests.history import CLAIM_TTL, Habits, History, RecordingClient, everything
from tests.server import ServerProcess

BATCHES = (1, 2, 20, 100, 999, 1_000, 1_001, 2_001, 5_000)
_PAGE = 20
_AT_ONCE = 8
_PAUSE = 0.002
_RETRIES = 60


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes of a run, and its times in seconds."""

    queues: int = 10_000
    backlog: int = 200_000
    batches: Sequence[int] = BATCHES
    share: float = 1.0
    undisturbed: float = 20.0
    disturbed: float = 60.0
    bound: float = 10.0

    def scaled(self, scale: float) -> "Plan":
        """The plan with all sizes multiplied by `scale`, and the same times."""
        return Plan(
            queues=max(4, int(self.queues * scale)),
            backlog=max(40, int(self.backlog * scale)),
            batches=[max(1, int(size * scale)) for size in self.batches],
            share=scale,
            undisturbed=self.undisturbed,
            disturbed=self.disturbed,
        )


class Waited(NamedTuple):
    """How long a request took, and how much CPU the server used meanwhile (seconds)."""

    took: float
    computed: float


@dataclass
class Outcome:
    """The results of a run; `broken` names every promise that was not kept."""

    broken: list[str] = field(default_factory=list)
    before: list["Waited"] = field(default_factory=list)
    beside: list["Waited"] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    greedy: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    history: str = ""

    @property
    def ratio(self) -> float:
        """The measuring tenant's p99 beside the others, divided by its undisturbed one."""
        if not self.beside:
            return float("inf")
        return at(took(self.beside), 0.99) / at(took(self.before), 0.99)

    def report(self, bound: float) -> str:
        """The results as lines of text."""
        verdict = "within" if self.ratio <= bound else "ABOVE"
        return "\n".join(
            [
                f"measuring, undisturbed:   {_times(took(self.before))}",
                f"measuring, beside others: {_times(took(self.beside))}",
                f"server's CPU meanwhile, undisturbed:   {_times(computed(self.before))}",
                f"server's CPU meanwhile, beside others: {_times(computed(self.beside))}",
                f"p99 is {self.ratio:.1f} times the undisturbed one: {verdict} {bound:g}",
                f"claims behind the backlog: {_times(self.claims)}",
                f"history: {self.history}; statuses {dict(self.statuses)}",
                *_steps(self.greedy),
                *(self.broken or ["nothing lost, nothing twice"]),
            ]
        )


def took(waited: Sequence[Waited]) -> list[float]:
    """How long requests took."""
    return [one.took for one in waited]


def computed(waited: Sequence[Waited]) -> list[float]:
    """How much CPU the server used while requests waited."""
    return [one.computed for one in waited]


def at(latencies: Sequence[float], quantile: float) -> float:
    """The quantile of latencies, in seconds."""
    return sorted(latencies)[min(len(latencies) - 1, int(len(latencies) * quantile))]


def _times(latencies: Sequence[float]) -> str:
    if not latencies:
        return "no request was answered in the time"
    p50, p99, most = (at(latencies, quantile) * 1000 for quantile in (0.5, 0.99, 1.0))
    return f"{len(latencies)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.0f} ms"


def condensed(violations: Sequence[str]) -> list[str]:
    """The number of violations of each kind, with the first one as an example."""
    kinds: dict[str, list[str]] = {}
    for text in violations:
        kinds.setdefault(text.partition(":")[0], []).append(text)
    return [f"{len(found)} x {found[0]}" for found in kinds.values()]


def _steps(greedy: Counter[str]) -> list[str]:
    lines = []
    for name in sorted({text.rpartition(" ")[0] for text in greedy}):
        counts = {text: n for text, n in greedy.items() if text.rpartition(" ")[0] == name}
        took = counts.pop(f"{name} ms", 0)
        answered = sum(counts.values())
        statuses = ", ".join(f"{n} x {text.rpartition(' ')[2]}" for text, n in counts.items())
        lines.append(f"greedy: {name}: {statuses}; {took / max(1, answered):.0f} ms each")
    return lines


async def run(store: str, plan: Plan, *options: str, pids: Sequence[int] = ()) -> Outcome:
    """Start a server over `store` and watch it; `options` are further arguments of `serve`.

    `pids` are processes of the store, whose CPU is added to the server's.
    """
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as home:
        offset = Path(home) / "clock"
        move_clock = partial(offset.write_text, str((CLAIM_TTL + 1) * 1000))
        server = ServerProcess(store, *options, env={"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset)})
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as measuring:
            try:
                await asyncio.to_thread(server.start)
                busy = [*processes(server.pid), *pids]
                await _watch(server.url, plan, move_clock, measuring, busy, outcome)
                if not server.alive():
                    outcome.broken.append(f"the server ended: {server.log()[-2000:]}")
            finally:
                server.close()
    return outcome


async def _watch(  # noqa: PLR0917 - the parts of a run
    url: str,
    plan: Plan,
    move_clock: Callable[[], object],
    measuring: Executor,
    busy: Sequence[int],
    outcome: Outcome,
) -> None:
    project = f"history-{uuid.uuid4().hex[:8]}"
    history = History()
    crowd = Crowd(url, project, plan, history, outcome)
    backlog = Backlog(url, plan.backlog, outcome)
    measured = partial(measure, url, f"measuring-{uuid.uuid4().hex[:8]}", busy)
    loop = asyncio.get_running_loop()
    await crowd.make_queues()
    await backlog.build()
    with Greedy(url, project, plan.share) as greedy:
        await loop.run_in_executor(measuring, measured, 0.5)  # warm up
        outcome.before = await loop.run_in_executor(measuring, measured, plan.undisturbed)
        move_clock()
        greedy.go()
        async with crowd.at_work(), backlog.claimed_by_ones():
            outcome.beside = await loop.run_in_executor(measuring, measured, plan.disturbed)
            outcome.greedy = await asyncio.to_thread(greedy.stop)
    outcome.broken += [name for name in outcome.greedy if " 5" in name and " 503" not in name]
    outcome.broken += [name for name in outcome.greedy if name.startswith("ended by")]
    await backlog.check()
    await crowd.check()


class Crowd:
    """Clients that record their answers, over many queues of which half are delayed."""

    def __init__(
        self, url: str, project: str, plan: Plan, history: History, outcome: Outcome
    ) -> None:
        self._url, self._project, self._plan = url, project, plan
        self._history = history
        self._outcome = outcome
        self._normal = [f"normal-{number}" for number in range(plan.queues // 2)]
        self._delayed = [f"delayed-{number}" for number in range(plan.queues - plan.queues // 2)]

    async def make_queues(self) -> None:
        """Create all queues."""
        async with client(self._url, self._project) as http:

            async def make(queue: str) -> None:
                metadata = {"_default_message_delay": 1} if queue in delayed else {}
                (await http.put(f"/v2/queues/{queue}", json=metadata)).raise_for_status()

            delayed = set(self._delayed)
            await each(self._normal + self._delayed, make)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Run the clients: first a batch of each size, then small ones and claims."""
        plan = self._plan
        consumer = Habits(project=self._project, limit=_PAGE)
        makers = [
            self._client(self._normal, Habits(project=self._project, sizes=(1, 5), delays=(0,))),
            self._client(self._delayed, Habits(project=self._project, sizes=(1, 5), delays=(0, 1))),
        ]
        takers = [self._client(self._normal, consumer) for _ in range(2)]

        async def produce(maker: RecordingClient) -> None:
            for size in random.sample(plan.batches, len(plan.batches)):
                await maker.post(size)
            await maker.run(produces=True)

        work = [asyncio.create_task(produce(maker)) for maker in makers]
        work += [asyncio.create_task(taker.run(produces=False)) for taker in takers]
        try:
            yield
        finally:
            for task in work:
                task.cancel()
            for end in await asyncio.gather(*work, return_exceptions=True):
                if not isinstance(end, asyncio.CancelledError):
                    self._outcome.broken.append(f"a client of the crowd ended: {end!r}")
            for one in (*makers, *takers):
                await one.close()

    def _client(self, queues: Sequence[str], habits: Habits) -> RecordingClient:
        name, seed = str(uuid.uuid4()), random.randrange(1_000)
        made = RecordingClient(self._history, self._url, queues, name, seed, habits=habits)
        made.note_answers(self._note)
        return made

    async def _note(self, answer: httpx.Response) -> None:
        self._outcome.statuses[answer.status_code] += 1

    async def check(self) -> None:
        """Read all queues and compare them with the answers that the clients recorded."""
        found: list[str] = []

        async def read(queue: str) -> None:
            found.extend(await everything(self._url, queue, self._project))

        await each(list(self._history.queues), read)
        self._history.end(found)
        self._outcome.broken += condensed(self._history.violations())
        self._outcome.broken += [
            f"status {status} for a client of the crowd"
            for status in self._outcome.statuses
            if status >= 400 and status != 503
        ]
        self._outcome.history = self._history.summary()


class Backlog:
    """Messages of which half expire and half become exhausted, all at one instant."""

    def __init__(self, url: str, size: int, outcome: Outcome) -> None:
        self._url = url
        self._outcome = outcome
        self._project = f"backlog-{uuid.uuid4().hex[:8]}"
        self._texts = [f"letter-{number}" for number in range(size // 2)]
        self._taken: list[str] = []

    async def build(self) -> None:
        """Post both halves. Claim the second, which is exhausted when these claims lapse."""
        async with client(self._url, self._project) as http:
            metadata = {"_max_claim_count": 1, "_dead_letter_queue": "letters"}
            (await http.put("/v2/queues/exhausted", json=metadata)).raise_for_status()
            for first in range(0, len(self._texts), 4_000):
                texts = self._texts[first : first + 4_000]
                for queue, ttl in (("expired", CLAIM_TTL), ("exhausted", 86_400)):
                    messages = [{"body": text, "ttl": ttl} for text in texts]
                    await self._call(http, "POST", f"{queue}/messages", {"messages": messages})
            held = 0
            while held < len(self._texts):
                answer = await self._claim(http, _PAGE)
                held += len(answer.json()["messages"])
            await self._call(http, "POST", "exhausted/messages", {"messages": [{"body": "ready"}]})

    @asynccontextmanager
    async def claimed_by_ones(self) -> AsyncIterator[None]:
        """Claim one message at a time behind the backlog, and record how long each claim takes."""

        async def claim() -> None:
            async with client(self._url, self._project) as http:
                while True:
                    began = time.perf_counter()
                    answer = await self._claim(http, 1)
                    self._outcome.claims.append(time.perf_counter() - began)
                    if answer.status_code == 201:
                        self._taken += [one["body"] for one in answer.json()["messages"]]
                    await asyncio.sleep(0.01)

        claiming = asyncio.create_task(claim())
        try:
            yield
        finally:
            claiming.cancel()
            (end,) = await asyncio.gather(claiming, return_exceptions=True)
            if not isinstance(end, asyncio.CancelledError):
                self._outcome.broken.append(f"claims behind the backlog ended: {end!r}")

    async def check(self) -> None:
        """Check that each exhausted message is a dead letter once, and no expired one is left."""
        async with client(self._url, self._project) as http:
            left = -1
            while left:
                before = left
                answer = await self._claim(http, _PAGE)
                if answer.status_code == 201:
                    self._taken += [one["body"] for one in answer.json()["messages"]]
                stats = (await http.get("/v2/queues/exhausted/stats")).raise_for_status().json()
                left = stats["messages"]["free"]
                if left == before:
                    self._outcome.broken.append(f"{left} exhausted messages stay where they are")
                    break
        letters = Counter(await everything(self._url, "letters", self._project))
        wanted = set(self._texts)
        lost, twice = wanted - set(letters), [text for text, n in letters.items() if n > 1]
        found = [f"lost: {len(lost)} exhausted messages"] if lost else []
        found += [f"twice: {len(twice)} letters"] if twice else []
        found += [f"invented: {text}" for text in set(letters) - wanted - {"ready"}]
        found += [f"handed out though exhausted: {text}" for text in set(self._taken) & wanted]
        if await everything(self._url, "expired", self._project):
            found.append("undone: expired messages are still there")
        self._outcome.broken += found

    async def _claim(self, http: httpx.AsyncClient, limit: int) -> httpx.Response:
        document = {"ttl": CLAIM_TTL, "grace": 60}
        return await self._call(http, "POST", f"exhausted/claims?limit={limit}", document)

    async def _call(
        self, http: httpx.AsyncClient, method: str, path: str, document: object
    ) -> httpx.Response:
        for _ in range(_RETRIES):
            answer = await http.request(method, f"/v2/queues/{path}", json=document)
            if answer.status_code != 503:
                break
            await asyncio.sleep(1)
        return answer.raise_for_status()


def client(url: str, project: str) -> httpx.AsyncClient:
    """A client for one project."""
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": project}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=120)


async def each(names: Sequence[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Run `act` for each name, a few at a time."""
    waiting = list(reversed(names))

    async def go_on() -> None:
        while waiting:
            await act(waiting.pop())

    await asyncio.gather(*[go_on() for _ in range(_AT_ONCE)])


def processes(pid: int) -> list[int]:
    """The ids of a process and of its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(other for child in children for other in processes(int(child)))]


def cpu_time(pid: int) -> float:
    """The CPU seconds of another process, by its clock in Linux."""
    return time.clock_gettime((~pid << 3) | 2)


def measure(url: str, project: str, pids: Sequence[int], seconds: float) -> list[Waited]:
    """Post, list, claim and delete one message at a time; return what each request took."""
    host, port = url.rpartition("/")[2].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": project}
    waited: list[Waited] = []

    def call(method: str, path: str, document: object = None) -> tuple[int, bytes]:
        time.sleep(_PAUSE)
        body = None if document is None else json.dumps(document)
        busy = sum(map(cpu_time, pids))
        began = time.perf_counter()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        ended = time.perf_counter()
        waited.append(Waited(ended - began, sum(map(cpu_time, pids)) - busy))
        return answer.status, content

    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        queue = "/v2/queues/measured"
        call("POST", f"{queue}/messages", {"messages": [{"body": "x" * 100}]})
        call("GET", f"{queue}/messages?limit=20&echo=true")
        status, content = call("POST", f"{queue}/claims?limit=1", {"ttl": 60, "grace": 60})
        if status == 201:
            (message,) = json.loads(content)["messages"]
            call("DELETE", message["href"])
    connection.close()
    return waited


def main() -> int:
    """Run the command line; returns the exit code, 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True, metavar="URI")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply all sizes by this (1)")
    parser.add_argument("--queues", type=int, default=Plan.queues)
    parser.add_argument("--backlog", type=int, default=Plan.backlog)
    parser.add_argument("--undisturbed", type=float, default=Plan.undisturbed, metavar="SECONDS")
    parser.add_argument("--disturbed", type=float, default=Plan.disturbed, metavar="SECONDS")
    parser.add_argument("--pid", type=int, action="append", help="count a store's process with it")
    parser.add_argument("option", nargs="*", help="further arguments of `serve`, after --")
    words = parser.parse_args()
    plan = Plan(
        queues=words.queues,
        backlog=words.backlog,
        undisturbed=words.undisturbed,
        disturbed=words.disturbed,
    )
    if words.scale != 1.0:
        plan = plan.scaled(words.scale)
    outcome = asyncio.run(run(words.store, plan, *words.option, pids=words.pid or ()))
    print(outcome.report(plan.bound))
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
