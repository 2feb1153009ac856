"""Everything large at once, over every store: nothing is lost, and nothing is there twice.

A greedy tenant sends the largest of every request that is allowed. A crowd of clients mixes batches
of all sizes over many queues and records every answer. A backlog of exhausted and expired messages
falls due at one instant, and others claim behind it.
"""

import asyncio
import os
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.greedy import being_greedy, running
from tests.history import CLAIM_TTL, Habits, History, RecordingClient, everything
from tests.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.anyio
PAGE = 20
AT_ONCE = 8
RETRIES = 60
_POSTED = 4_000


class Plan(NamedTuple):
    """The sizes of a run, and for how many seconds all are at work."""

    queues: int
    backlog: int
    batches: Sequence[int] = (1, 2, 20, 100, 999, 1_000, 1_001, 2_001, 5_000)
    share: float = 1.0
    seconds: float = 1.0

    def scaled(self, scale: float) -> "Plan":
        """The plan with all sizes multiplied by `scale`, and the same time."""
        return Plan(
            max(4, int(self.queues * scale)),
            max(40, int(self.backlog * scale)),
            [max(1, int(size * scale)) for size in self.batches],
            scale,
            self.seconds,
        )


SMALL = Plan(queues=50, backlog=500)
if "ZAQAR_TEST_ALL" in os.environ:
    SMALL = Plan(queues=100, backlog=1_000, seconds=3.0)

SLOW = {"mongodb", "swift"}
"""Swift by nature, MongoDB in the stand-in that the tests start."""

STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda *_: "memory://",
    "embedded": lambda _, path: f"embedded://{path}",
    "slatedb": lambda _, path: f"opendata+slatedb://{path}",
    "redis": lambda request, _: str(request.getfixturevalue("redis_server").url),
    "mongodb": lambda request, _: str(request.getfixturevalue("mongodb_server").url),
    "swift": lambda request, _: (
        f"{request.getfixturevalue('swift_server').url}?prefix=bounded-{uuid.uuid4().hex[:8]}"
    ),
}


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

    await asyncio.gather(*[go_on() for _ in range(AT_ONCE)])


class Crowd:
    """Clients that record their answers, over many queues of which half are delayed."""

    def __init__(self, url: str, project: str, plan: Plan) -> None:
        self._url, self._project, self._plan = url, project, plan
        self._history = History()
        self._statuses: Counter[int] = Counter()
        self._normal = [f"normal-{number}" for number in range(plan.queues // 2)]
        self._delayed = [f"delayed-{number}" for number in range(plan.queues - plan.queues // 2)]

    async def make_queues(self) -> None:
        """Create all queues."""
        async with client(self._url, self._project) as http:

            async def make(queue: str) -> None:
                metadata = {"_default_message_delay": 1} if queue in self._delayed else {}
                (await http.put(f"/v2/queues/{queue}", json=metadata)).raise_for_status()

            await each(self._normal + self._delayed, make)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Run the clients: first a batch of each size, then small ones and claims."""
        consumer = Habits(project=self._project, limit=PAGE)
        makers = [
            self._client(self._normal, Habits(project=self._project, sizes=(1, 5), delays=(0,))),
            self._client(self._delayed, Habits(project=self._project, sizes=(1, 5), delays=(0, 1))),
        ]
        takers = [self._client(self._normal, consumer) for _ in range(2)]

        async def produce(maker: RecordingClient) -> None:
            for size in random.sample(self._plan.batches, len(self._plan.batches)):
                await maker.post(size)
            await maker.run(produces=True)

        try:
            async with running(*map(produce, makers), *(t.run(produces=False) for t in takers)):
                yield
        finally:
            for one in (*makers, *takers):
                await one.close()

    def _client(self, queues: Sequence[str], habits: Habits) -> RecordingClient:
        name, seed = str(uuid.uuid4()), random.randrange(1_000)
        made = RecordingClient(self._history, self._url, queues, name, seed, habits=habits)
        made.note_answers(self._note)
        return made

    async def _note(self, answer: httpx.Response) -> None:
        self._statuses[answer.status_code] += 1

    async def check(self) -> None:
        """Read all queues and compare them with the answers that the clients recorded."""
        found: list[str] = []

        async def read(queue: str) -> None:
            found.extend(await everything(self._url, queue, self._project))

        await each(list(self._history.queues), read)
        self._history.end(found)
        assert self._history.violations() == []
        assert not {status for status in self._statuses if status >= 400} - {503}
        assert self._history.posts


class Backlog:
    """Messages of which half expire and half become exhausted, all at one instant."""

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._project = f"backlog-{uuid.uuid4().hex[:8]}"
        self._texts = [f"letter-{number}" for number in range(size // 2)]
        self._taken: list[str] = []

    async def build(self) -> None:
        """Post both halves. Claim the second, which is exhausted when these claims lapse."""
        async with client(self._url, self._project) as http:
            metadata = {"_max_claim_count": 1, "_dead_letter_queue": "letters"}
            (await http.put("/v2/queues/exhausted", json=metadata)).raise_for_status()
            for queue, ttl in (("expired", CLAIM_TTL), ("exhausted", 86_400)):
                messages = [{"body": text, "ttl": ttl} for text in self._texts]
                for first in range(0, len(messages), _POSTED):
                    part = {"messages": messages[first : first + _POSTED]}
                    await self._call(http, "POST", f"{queue}/messages", part)
            held = 0
            while held < len(self._texts):
                held += len(await self._claim(http, PAGE))
            await self._call(http, "POST", "exhausted/messages", {"messages": [{"body": "ready"}]})

    async def claim_by_ones(self) -> None:
        """Claim one message at a time behind the backlog, for ever."""
        async with client(self._url, self._project) as http:
            while True:
                self._taken += await self._claim(http, 1)
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Check that each exhausted message is a dead letter once, and no expired one is left."""
        async with client(self._url, self._project) as http:
            left = -1
            while left:
                before = left
                self._taken += await self._claim(http, PAGE)
                stats = (await http.get("/v2/queues/exhausted/stats")).raise_for_status().json()
                left = stats["messages"]["free"]
                assert left != before, f"{left} exhausted messages stay where they are"
        letters = await everything(self._url, "letters", self._project)
        assert sorted(set(letters) - {"ready"}) == sorted(self._texts)
        assert len(set(letters)) == len(letters)
        assert not set(self._taken) & set(self._texts), "handed out though exhausted"
        assert await everything(self._url, "expired", self._project) == []

    async def _claim(self, http: httpx.AsyncClient, limit: int) -> list[str]:
        document = {"ttl": CLAIM_TTL, "grace": 60}
        answer = await self._call(http, "POST", f"exhausted/claims?limit={limit}", document)
        messages = answer.json()["messages"] if answer.status_code == 201 else []
        return [one["body"] for one in messages]

    async def _call(
        self, http: httpx.AsyncClient, method: str, path: str, document: object
    ) -> httpx.Response:
        for _ in range(RETRIES):
            answer = await http.request(method, f"/v2/queues/{path}", json=document)
            if answer.status_code != 503:
                break
            await asyncio.sleep(1)
        return answer.raise_for_status()


@pytest.mark.parametrize("store", STORES)
async def test_no_size_of_anything_loses_a_message(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    plan = SMALL.scaled(0.01) if store in SLOW else SMALL
    clock, project = tmp_path / "clock", f"history-{uuid.uuid4().hex[:8]}"
    uri = STORES[store](request, tmp_path / "data")
    with ServerProcess(uri, env={"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock)}) as server:
        crowd, backlog = Crowd(server.url, project, plan), Backlog(server.url, plan.backlog)
        await crowd.make_queues()
        await backlog.build()
        clock.write_text(str((CLAIM_TTL + 1) * 1000))
        greedy = being_greedy(server.url, project, plan.share)
        async with greedy as answered, crowd.at_work(), running(backlog.claim_by_ones()):
            await asyncio.sleep(plan.seconds)
            await until(lambda: answered, seconds=60)  # a busy Swift takes its time
        await backlog.check()
        await crowd.check()
        assert server.alive()
    assert not [name for name in answered if " 5" in name and " 503" not in name]
