"""Measure what a tenant waits for beside others: `python -m tests.bounded --store URI`.

The tenants of `test_bounded.py`, at full size: 10,000 queues, and 200,000 messages that fall due at
one instant. Another tenant, in a process of its own, posts, lists, claims and deletes one message
at a time, first alone and then beside them. Prints how long its requests took, and how many times
its undisturbed p99 the other one is; fails where a message was lost or is there twice.

With `--apart` the one that is measured has a server and a store of its own, so that nothing but the
processors is shared: what it waits for then, no server can spare it.

With `--redrive` the others are a job that puts 100,000 dead letters back, which prints its letters
a second, too; it rests while there are requests of others, so it is measured alone as well.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from threading import Thread

import httpx

from tests.greedy import being_greedy, running
from tests.history import CLAIM_TTL, NO_LIMIT
from tests.server import ServerProcess
from tests.test_bounded import Backlog, Crowd, Plan
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import (
    ClaimRequest,
    DeadLetter,
    DelayMode,
    QueueRef,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.registry import create_stores

FULL = Plan(queues=10_000, backlog=200_000)
ALONE, BESIDE = 10.0, 30.0
"""Seconds for which the tenant works alone and beside the others."""
PAUSE = 0.001
WARM_UP = 0.5
LETTERS, _LETTERS_EACH = 100_000, 200
_LETTER_TTL_MS = 14 * 86_400_000


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True, metavar="URI")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply all sizes by this (1)")
    parser.add_argument("--apart", metavar="URI", help="measure a server of its own, on this store")
    parser.add_argument("--redrive", action="store_true", help="beside a redrive of letters")
    words = parser.parse_args()
    if words.redrive:
        asyncio.run(run_redrive(words.store, max(_LETTERS_EACH, int(LETTERS * words.scale))))
    else:
        asyncio.run(run(words.store, FULL.scaled(words.scale), words.apart))


@asynccontextmanager
async def measuring() -> AsyncIterator[Callable[[str, float], Awaitable[list[float]]]]:
    """Give a function that has `waited` run in a process of its own."""
    loop, spawn = asyncio.get_running_loop(), multiprocessing.get_context("spawn")
    project = f"measuring-{uuid.uuid4().hex[:8]}"
    with ProcessPoolExecutor(1, spawn, initializer=_begin_measuring) as pool:

        def measured(url: str, seconds: float) -> Awaitable[list[float]]:
            return loop.run_in_executor(pool, waited, url, project, seconds)

        yield measured


def _begin_measuring() -> None:
    """Keep the priority that this process has, and end with the one that started it.

    Its own queue never ends by itself, as it holds both ends of that.
    """
    os.setsid()
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


async def run(store: str, plan: Plan, apart: str | None = None) -> None:
    """Start a server on a store, and measure beside a greedy tenant; on a server `apart`."""
    project = f"history-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as home:
        clock = Path(home) / "clock"
        clock_file = {"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock)}
        async with measuring() as measured:
            with ServerProcess(store, env=clock_file) as server, ExitStack() as others:
                own = others.enter_context(ServerProcess(apart)) if apart else server
                await measured(own.url, WARM_UP)
                step_back()
                crowd = Crowd(server.url, project, plan)
                backlog = Backlog(server.url, plan.backlog)
                await crowd.make_queues()
                await backlog.build()
                alone = await measured(own.url, ALONE)
                clock.write_text(str((CLAIM_TTL + 1) * 1000))
                greedy = being_greedy(server.url, project, plan.share)
                async with greedy as answered, crowd.at_work(), running(backlog.claim_by_ones()):
                    beside = await measured(own.url, BESIDE)
                show(alone, beside)
                print(f"the greedy tenant: {dict(answered)}")
                await backlog.check()
                await crowd.check()
    print("nothing lost, nothing twice")


async def run_redrive(store: str, count: int) -> None:
    """Start a server on a store that has letters, and measure beside a redrive of them."""
    project = f"letters-{uuid.uuid4().hex[:8]}"
    async with measuring() as measured:
        for alone in (True, False):
            await bury(store, project, count)
            with ServerProcess(store) as server, http_client(server.url, project) as http:
                await measured(server.url, WARM_UP)
                before = [] if alone else await measured(server.url, ALONE)
                job = (
                    http.post("/v2/queues/letters/redrives", json={"filter": {}})
                    .raise_for_status()
                    .json()
                )
                beside = [] if alone else await measured(server.url, BESIDE)
                if before:
                    show(before, beside)
                while job["state"] == "running":
                    await asyncio.sleep(0.1)
                    path = f"/v2/queues/letters/redrives/{job['id']}"
                    job = http.get(path).raise_for_status().json()
                assert job["done"] == count, job
                where = "alone" if alone else "beside others"
                print(f"{job['rate']:,.0f} letters a second {where}")


def http_client(url: str, project: str) -> httpx.Client:
    """A client for one project."""
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": project}
    return httpx.Client(base_url=url, headers=headers, timeout=120)


async def bury(store: str, project: str, count: int) -> None:
    """Let messages die, without a server."""
    work, letters = QueueRef(project, "work"), QueueRef(project, "letters")
    retries = RetryPolicy(DeadLetter(letters, max_claims=NO_LIMIT))
    options = StoreOptions(max_messages=NO_LIMIT)
    messages, management = create_stores(store, clock=Clock(), options=options)
    async with management, messages:
        for queue in (work, letters):
            await management.create_queue(queue, {}, max_queues=NO_LIMIT)
        for _ in range(0, count, _LETTERS_EACH):
            new = [NewMessage(b'"%s"' % (b"x" * 180), _LETTER_TTL_MS)] * _LETTERS_EACH
            await messages.post(work, new, client_id="poster", version=None)
            request = ClaimRequest(_LETTERS_EACH, None, DelayMode.IGNORE, 600_000, retries=retries)
            claimed = await messages.claim(work, request)
            dead = [Settlement(one.id, Act.DEAD, reason="tried") for one in claimed.messages]
            await messages.settle(work, claimed.claim_id or "", dead, retries=retries)
        while (await messages.stats(letters)).total < count:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)


def step_back() -> None:
    """Leave the CPU to the server, to the store and to who measures.

    Linux shares it between sessions first (autogroups), and by nice values only within one.
    """
    os.nice(10)
    with suppress(OSError):  # no autogroups here
        Path("/proc/self/autogroup").write_text("10", encoding="ascii")


def waited(url: str, project: str, seconds: float) -> list[float]:
    """Post, list, claim and delete one message at a time; answer how long each request took."""
    host, port = url.rpartition("/")[2].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": project}
    took: list[float] = []

    def call(method: str, path: str, document: object = None) -> tuple[int, bytes]:
        time.sleep(PAUSE)
        body = None if document is None else json.dumps(document)
        began = time.perf_counter()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        took.append(time.perf_counter() - began)
        return answer.status, content

    queue, ends = "/v2/queues/measured", time.monotonic() + seconds
    while time.monotonic() < ends:
        call("POST", f"{queue}/messages", {"messages": [{"body": "x" * 100}]})
        call("GET", f"{queue}/messages?limit=20&echo=true")
        status, content = call("POST", f"{queue}/claims?limit=1", {"ttl": 60, "grace": 60})
        if status == 201:
            (message,) = json.loads(content)["messages"]
            call("DELETE", message["href"])
    connection.close()
    return took


def at(took: Sequence[float], quantile: float) -> float:
    """The quantile of times, in seconds."""
    return sorted(took)[min(len(took) - 1, int(len(took) * quantile))]


def show(alone: Sequence[float], beside: Sequence[float]) -> None:
    """Print what a tenant waits for alone and beside others."""
    print(f"undisturbed:   {shown(alone)}")
    print(f"beside others: {shown(beside)}")
    print(f"p99 is {at(beside, 0.99) / at(alone, 0.99):.1f} times the undisturbed one")


def shown(took: Sequence[float]) -> str:
    """Times as a line of text."""
    p50, p99, most = (at(took, quantile) * 1000 for quantile in (0.5, 0.99, 1.0))
    return f"{len(took)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.0f} ms"


if __name__ == "__main__":
    main()
