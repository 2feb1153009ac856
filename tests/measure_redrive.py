"""Redrive many letters, kill servers meanwhile: `python -m tests.measure_redrive embedded|redis`.

The letters have died by claims, so they have attempts; they are made by the store itself, without
a server (`--letters`, a million; `--directory` keeps the embedded store, and one that holds letters
is taken as it is). Then a job puts them back to their queue while servers are killed (`--kills`,
5). Checked is that each letter is in its queue exactly once, that none is left, and that the
progress shown was true within 1 % of all, or by a step for each kill. Printed are the letters a
second over the whole job, how wrong the progress was at worst, and the p99 of another project's
posts, claims and deletes before and beside.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple
from uuid import uuid4

import httpx

from tests.server import ServerProcess
from tests.services import start_redis
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import (
    DeadLetter,
    DelayMode,
    QueueRef,
    Retries,
    Selection,
    StoreOptions,
    Take,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

PROJECT, SOURCE, LETTERS = "redrives", "work", "letters"
_BODY = b'{"text": "%s"}' % (b"x" * 180)
_TTL_MS = 14 * 86_400_000
_BATCH = 500
_PROGRESS = 0.01


class Outcome(NamedTuple):
    """What a run showed: kills, seconds of the job, how wrong its progress was, p99 in seconds."""

    kills: int
    seconds: float
    wrong: float
    alone: float
    beside: float


@contextlib.asynccontextmanager
async def _opened(uri: str) -> AsyncIterator[MessageStore]:
    messages, management = create_stores(
        uri, clock=Clock(), options=StoreOptions(max_messages=100_000_000)
    )
    async with management, messages:
        yield messages


async def prepare(uri: str, count: int) -> list[str]:
    """Let messages die until there are `count` letters, or take those there are; answer the ids."""
    async with _opened(uri) as messages:
        letters = QueueRef(PROJECT, LETTERS)
        if found := await _ids(messages, letters):
            return found
        for first in range(0, count, _BATCH):
            await _let_die(messages, min(_BATCH, count - first))
        while (await messages.stats(letters)).total < count:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)
        return await _ids(messages, letters)


async def _let_die(messages: MessageStore, count: int) -> None:
    work = QueueRef(PROJECT, SOURCE)
    retries = Retries(DeadLetter(QueueRef(PROJECT, LETTERS), max_failures=1))
    new = [NewMessage(_BODY, _TTL_MS)] * count
    await messages.post(work, new, client_id=str(uuid4()), version=None)
    take = Take(count, None, DelayMode.IGNORE, 60_000, 60_000, str(uuid4()), retries)
    claimed = await messages.claim(work, take)
    assert claimed.claim_id is not None
    failures = [
        Settlement(one.id, Act.RELEASE, failed=True, reason="http_503") for one in claimed.messages
    ]
    await messages.settle(work, claimed.claim_id, failures, retries=retries)


async def _ids(messages: MessageStore, queue: QueueRef) -> list[str]:
    found: list[str] = []
    marker = Marker(0)
    while True:
        page = await messages.list_messages(queue, Selection(_BATCH, marker, bare=True))
        if not page.messages or page.marker is None:
            return found
        found += [message.id for message in page.messages]
        marker = Marker(page.marker)


class Others:
    """Another project, which posts, claims and deletes a message at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._took: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def p99(self) -> float:
        """The p99 of the requests since this was asked last, in seconds."""
        took, self._took = sorted(self._took), []
        return took[len(took) * 99 // 100] if took else 0.0

    def stop(self) -> None:
        """Send nothing more."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        headers = {"Client-ID": str(uuid4()), "X-Project-ID": "others"}
        path = "/v2/queues/quiet"
        with httpx.Client(base_url=self._url, headers=headers, timeout=60) as client:
            while not self._stop.wait(0.005):
                try:
                    self._ask(client, "POST", f"{path}/messages", {"messages": [{"body": 1}]})
                    claimed = self._ask(client, "POST", f"{path}/claims?limit=1", {})
                    if claimed.status_code == 201:
                        (message,) = claimed.json()["messages"]
                        self._ask(client, "DELETE", message["href"])
                except httpx.TransportError:  # the server was killed
                    time.sleep(0.1)

    def _ask(
        self, client: httpx.Client, method: str, path: str, document: object = None
    ) -> httpx.Response:
        began = time.perf_counter()
        answer = client.request(method, path, json=document)
        self._took.append(time.perf_counter() - began)
        return answer


def run(uri: str, ids: Sequence[str], *, servers: int, kills: int, alone: float) -> Outcome:
    """Redrive the letters of a store that are `ids`, killing servers on the way, and check.

    Raises:
        AssertionError: a letter is lost, doubled or left, or the progress was not true.
    """
    count = len(ids)
    with ExitStack() as stack:
        started = [ServerProcess(uri) for _ in range(servers)]
        for server in started:
            stack.callback(server.close)
            server.start()
        others = Others(started[0].url)
        stack.callback(others.stop)
        time.sleep(alone)
        p99_alone = others.p99()
        headers = {"Client-ID": str(uuid4()), "X-Project-ID": PROJECT}
        client = stack.enter_context(
            httpx.Client(base_url=started[0].url, headers=headers, timeout=60)
        )
        began = time.perf_counter()
        answer = client.post(f"/v2/queues/{LETTERS}/redrives", json={"filter": {}})
        assert answer.status_code == 202, answer.text
        wrong, killed, p99_beside = 0, 0, 0.0
        while True:
            time.sleep(0.2)
            job = client.get(answer.headers["location"]).json()
            stats = client.get(f"/v2/queues/{SOURCE}/stats").json()["messages"]
            if killed == kills or job["state"] != "running":
                wrong = max(wrong, job["done"] - stats["total"])
            if job["state"] != "running":
                break
            if killed < kills and job["done"] >= count * (killed + 1) // (kills + 2):
                p99_beside = max(p99_beside, others.p99())
                server = random.choice(started)
                server.kill()
                server.start()
                others.p99()
                killed += 1
        took = time.perf_counter() - began
        wrong = max(wrong, abs(count - job["done"]))
        p99_beside = max(p99_beside, others.p99())
    assert job["state"] == "completed", job
    asyncio.run(check(uri, ids))
    # A step that was not written down before a kill is done, and not counted.
    true = max(_PROGRESS * count, _BATCH * kills)
    assert wrong <= true, f"the progress was wrong by {wrong} of {count}"
    return Outcome(killed, took, wrong / count, p99_alone, p99_beside)


async def check(uri: str, ids: Sequence[str]) -> None:
    """Check that each letter is back exactly once, and none is left."""
    async with _opened(uri) as messages:
        assert await _ids(messages, QueueRef(PROJECT, LETTERS)) == []
        back = Counter(await _ids(messages, QueueRef(PROJECT, SOURCE)))
    assert back == Counter(ids)


@contextlib.contextmanager
def stores(driver: str, directory: str | None = None) -> Iterator[tuple[str, int]]:
    """A store of a driver, and how many servers share it."""
    if driver == "redis":
        with start_redis() as redis:
            yield redis.url, 2
    else:
        with tempfile.TemporaryDirectory() as temporary:
            yield f"embedded://{directory or temporary + '/store'}", 1


def main() -> None:
    """Run it, and print what it showed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver", choices=("embedded", "redis"))
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    with stores(arguments.driver, arguments.directory) as (uri, servers):
        began = time.perf_counter()
        ids = asyncio.run(prepare(uri, arguments.letters))
        print(f"{len(ids):,} letters there after {time.perf_counter() - began:.0f} s", flush=True)
        done = run(uri, ids, servers=servers, kills=arguments.kills, alone=10)
    print(f"{len(ids) / done.seconds:,.0f} letters a second, {done.kills} kills included")
    print(f"progress wrong by {done.wrong:.3%} at worst; each letter is back exactly once")
    print(f"p99 of others {done.alone * 1000:.1f} ms alone, {done.beside * 1000:.1f} ms beside")


if __name__ == "__main__":
    main()
