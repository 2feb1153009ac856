"""Redrive many letters, kill servers meanwhile: `python -m tests.measure_redrive embedded|redis`.

The letters have died by claims, so they have attempts; they are made by the store itself, without
a server (`--letters`, a million). `--directory` keeps the embedded store for other runs; it refuses
a directory that holds anything else. Then a job puts the letters back to their queue while servers
are killed (`--kills`, 5). Checked is that each letter is in its queue exactly once, that none is
left, and that the progress shown was true within 1 % of all. Printed are the letters a second over
the whole job, and how wrong the progress was at worst.

With `--beside SECONDS` another project posts, claims and deletes a message at a time for so long
before the job and beside it; then the job is cancelled. Printed are the p99 of both, and the
letters a second.
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
from pathlib import Path
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
    """What a run showed: kills, seconds of the job, and how wrong its progress was."""

    kills: int
    seconds: float
    wrong: float


class Beside(NamedTuple):
    """The p99 of others before a job and beside it, in seconds, and its letters a second then."""

    alone: float
    beside: float
    rate: float


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


@contextlib.contextmanager
def _serving(uri: str, count: int) -> Iterator[tuple[Sequence[ServerProcess], httpx.Client]]:
    """Servers of a store, and a client of the first of them."""
    with ExitStack() as stack:
        servers = [ServerProcess(uri) for _ in range(count)]
        for server in servers:
            stack.callback(server.close)
            server.start()
        headers = {"Client-ID": str(uuid4()), "X-Project-ID": PROJECT}
        client = httpx.Client(base_url=servers[0].url, headers=headers, timeout=60)
        yield servers, stack.enter_context(client)


def _begin(client: httpx.Client) -> str:
    answer = client.post(f"/v2/queues/{LETTERS}/redrives", json={"filter": {}})
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


def run(uri: str, ids: Sequence[str], *, servers: int, kills: int) -> Outcome:
    """Redrive the letters of a store that are `ids`, killing servers on the way, and check.

    Raises:
        AssertionError: a letter is lost, doubled or left, or the progress was not true.
    """
    count = len(ids)
    with _serving(uri, servers) as (started, client):
        began = time.perf_counter()
        location = _begin(client)
        wrong, killed = 0, 0
        while True:
            time.sleep(0.2)
            job = client.get(location).json()
            stats = client.get(f"/v2/queues/{SOURCE}/stats").json()["messages"]
            if killed == kills or job["state"] != "running":
                wrong = max(wrong, job["done"] - stats["total"])
            if job["state"] != "running":
                break
            if killed < kills and job["done"] >= count * (killed + 1) // (kills + 2):
                server = random.choice(started)
                server.kill()
                server.start()
                killed += 1
        took = time.perf_counter() - began
    wrong = max(wrong, abs(count - job["done"]))
    assert job["state"] == "completed", job
    asyncio.run(check(uri, ids))
    assert wrong <= _PROGRESS * count, f"the progress was wrong by {wrong} of {count}"
    return Outcome(killed, took, wrong / count)


def beside(uri: str, *, servers: int, seconds: float) -> Beside:
    """Measure what others wait for before a redrive and beside it, which is cancelled then."""
    with _serving(uri, servers) as (started, client):
        others = Others(started[0].url)
        try:
            time.sleep(3)
            others.p99()
            time.sleep(seconds)
            alone = others.p99()
            location = _begin(client)
            time.sleep(seconds)
            found = Beside(alone, others.p99(), client.get(location).json()["rate"])
            client.delete(location)
            return found
        finally:
            others.stop()


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
    elif directory is not None:
        yield f"embedded://{own_store(Path(directory))}", 1
    else:
        with tempfile.TemporaryDirectory() as temporary:
            yield f"embedded://{temporary}/store", 1


def own_store(directory: Path) -> Path:
    """Return the place of the store in a directory that this script has made, or makes now.

    Raises:
        SystemExit: something else is in the directory.
    """
    mark, store = directory / "made-by-measure-redrive", directory / "store"
    found = set(directory.iterdir()) if directory.exists() else set()
    if found - {mark, store} or (found and mark not in found):
        text = f"{directory} holds something that this script has not made: name an empty directory"
        raise SystemExit(text)
    directory.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return store


def main() -> None:
    """Run it, and print what it showed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver", choices=("embedded", "redis"))
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--beside", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    with stores(arguments.driver, arguments.directory) as (uri, servers):
        began = time.perf_counter()
        ids = asyncio.run(prepare(uri, arguments.letters))
        print(f"{len(ids):,} letters there after {time.perf_counter() - began:.0f} s", flush=True)
        if arguments.beside:
            others = beside(uri, servers=servers, seconds=arguments.beside)
            print(f"p99 of others {others.alone * 1000:.1f} ms alone, ", end="")
            print(f"{others.beside * 1000:.1f} ms beside {others.rate:,.0f} letters a second")
            return
        done = run(uri, ids, servers=servers, kills=arguments.kills)
    print(f"{len(ids) / done.seconds:,.0f} letters a second, {done.kills} kills included")
    print(f"progress wrong by {done.wrong:.3%} at worst; each letter is back exactly once")


if __name__ == "__main__":
    main()
