"""Measure subscriptions: `python -m tests.measure_deliveries KIND [--store URI]`.

dead    the time from a post's answer to the requests of 50 good endpoints, alone, then beside 50
        that are dead: half of those refuse, half never answer
post    the time of a post to a queue with 100 subscriptions beside one to a queue without; each
        waits until all deliveries of the one before have come
idle    10,000 subscriptions made on 1,000 queues over HTTP, and the CPU of the server that then
        has nothing to do

A server of its own, called over sockets. `--store` is a URI, or `embedded`, `redis`, `mongodb`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.server import ServerProcess
from tests.services import free_port, start_mongo, start_redis
from zaqar_lite.bench.connection import StreamConnection
from zaqar_lite.bench.scenarios import Target, message_body
from zaqar_lite.bench.webhook import Receiver

_HEADERS = "Client-ID: 3381af92-2b9e-11e3-b191-71861300734c\r\nX-Project-ID: p\r\n"
ENVIRONMENT = {"ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8"}
_PATIENCE = 30
_WARM_UP = 10
_PAUSE = 0.03
"""Seconds between two rounds: the server deletes what was delivered, connections close."""


class Spread(NamedTuple):
    """Times in seconds: the median, the 99th of a hundred, and the longest."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> "Spread":
        """The spread of some times."""
        ordered = sorted(times)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])

    def __str__(self) -> str:
        return "p50 {:.2f}, p99 {:.2f}, most {:.1f} ms".format(*(one * 1000 for one in self))


class _Silent(asyncio.Protocol):
    """Reads, and never answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection's transport."""
        self.transport = transport


Endpoint = Receiver | _Silent


def target(server: ServerProcess, queue: str) -> Target:
    """Where requests for a queue go."""
    return Target("127.0.0.1", server.port, "", keys=False, headers=_HEADERS, queue=queue)


async def subscribe(line: StreamConnection, at: Target, url: str) -> None:
    """Subscribe a URL to a queue."""
    status, body, _ = await line.ask(at.request("POST", "/subscriptions", _subscriber(url)))
    assert status == 201, body


def _subscriber(url: str) -> bytes:
    return json.dumps({"subscriber": url, "ttl": 86_400}).encode()


@contextlib.asynccontextmanager
async def endpoints(make: Callable[[], Endpoint], count: int) -> AsyncIterator[Sequence[str]]:
    """HTTP servers, each on a port of its own; their URLs."""
    loop = asyncio.get_running_loop()
    called: list[Endpoint] = []

    def connected() -> Endpoint:
        called.append(make())
        return called[-1]

    servers = [await loop.create_server(connected, "127.0.0.1", 0) for _ in range(count)]
    try:
        yield [f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}/" for one in servers]
    finally:
        for server in servers:
            server.close()
        # The server tries again all the time: what was let in last has its transport after this.
        await asyncio.sleep(_PAUSE)
        for endpoint in called:
            endpoint.transport.close()
        await asyncio.sleep(_PAUSE)  # transports close in the loop's next steps


class _Arrivals:
    """When which message came, and to how many."""

    def __init__(self) -> None:
        self.at: dict[bytes, list[float]] = {}
        self._came = asyncio.Event()

    def came(self, name: bytes) -> None:
        """Note the arrival of a message."""
        self.at.setdefault(name, []).append(time.perf_counter())
        self._came.set()

    async def wait(self, name: bytes, count: int) -> list[float]:
        """Wait until a message has come to so many."""
        async with asyncio.timeout(_PATIENCE):
            while len(self.at.get(name, ())) < count:
                self._came.clear()
                await self._came.wait()
        return self.at[name]


def _posted(body: bytes) -> bytes:
    (href,) = json.loads(body)["resources"]
    return str(href).rpartition("/")[2].encode()


async def beside_dead(
    server: ServerProcess, *, good: int, dead: int, posts: int, pause: float
) -> Spread:
    """Post at a pace to a queue of so many endpoints; the times until the good ones had it."""
    arrivals = _Arrivals()
    at = target(server, f"dead-{dead}")
    line = await at.connect()
    async with (
        endpoints(lambda: Receiver(arrivals.came), good) as answering,
        endpoints(_Silent, dead // 2) as silent,
    ):
        refusing = [f"http://127.0.0.1:{free_port()}/" for _ in range(dead - dead // 2)]
        for url in random.sample([*answering, *silent, *refusing], good + dead):
            await subscribe(line, at, url)
        request = at.request("POST", "/messages", message_body(1))
        answers: list[tuple[bytes, float]] = []
        for _ in range(posts):
            status, body, answered = await line.ask(request)
            assert status == 201, body
            answers.append((_posted(body), answered))
            await asyncio.sleep(pause)
        times = [
            max(came - answered, 0.0)
            for name, answered in answers
            for came in await arrivals.wait(name, good)
        ]
    line.close()
    return Spread.of(times)


async def posting(
    server: ServerProcess, *, subscriptions: int, rounds: int
) -> tuple[Spread, Spread]:
    """The times of posts to a queue without subscriptions, and to one that has some."""
    arrivals = _Arrivals()
    plain, listening = target(server, "plain"), target(server, "listening")
    taken: dict[str, list[float]] = {"plain": [], "listening": []}
    async with endpoints(lambda: Receiver(arrivals.came), subscriptions) as urls:
        for url in urls:
            await _ask(listening, "POST", "/subscriptions", _subscriber(url))
        for number in range(rounds + _WARM_UP):
            for at in (plain, listening) if number % 2 else (listening, plain):
                body, took = await _ask(at, "POST", "/messages", message_body(1))
                if number >= _WARM_UP:
                    taken[at.queue].append(took)
                if at is listening:
                    await arrivals.wait(_posted(body), subscriptions)
                await asyncio.sleep(_PAUSE)
    return Spread.of(taken["plain"]), Spread.of(taken["listening"])


async def _ask(at: Target, method: str, path: str, document: bytes) -> tuple[bytes, float]:
    """A request on a connection of its own: its answer, and the seconds from the request to it."""
    line = await at.connect()
    began = time.perf_counter()
    status, body, answered = await line.ask(at.request(method, path, document))
    line.close()
    assert status == 201, body
    return body, answered - began


class Idle(NamedTuple):
    """Seconds to make subscriptions, and the share of a core that the idle server takes."""

    making: float
    share: float


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and of its children that still run."""
    here = Path("/proc") / str(pid)
    fields = (here / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    children = (here / "task" / str(pid) / "children").read_text(encoding="utf-8").split()
    below = sum(cpu_seconds(int(child)) for child in children)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + below


async def idling(server: ServerProcess, *, queues: int, each: int, seconds: float) -> Idle:
    """Make `each` subscriptions on every queue over 16 connections; then wait, and look."""
    began = time.perf_counter()
    await asyncio.gather(*(_make(server, range(n, queues, 16), each) for n in range(16)))
    making = time.perf_counter() - began
    await asyncio.sleep(2)
    before, began = cpu_seconds(server.pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return Idle(making, (cpu_seconds(server.pid) - before) / (time.perf_counter() - began))


async def _make(server: ServerProcess, numbers: range, each: int) -> None:
    line = await target(server, "").connect()
    for number in numbers:
        for receiver in range(each):
            at = target(server, f"queue-{number}")
            await subscribe(line, at, f"https://receiver.example/{number}/{receiver}")
    line.close()
    await asyncio.sleep(_PAUSE)


async def _report(kind: str, server: ServerProcess, store: str) -> None:
    if kind == "dead":
        alone = await beside_dead(server, good=50, dead=0, posts=120, pause=0.15)
        print(f"{store}: 50 good endpoints alone:       {alone}")
        beside = await beside_dead(server, good=50, dead=50, posts=120, pause=0.15)
        print(f"{store}: 50 good endpoints of 100:      {beside}")
        print(f"{store}: p99 {beside.p99 / alone.p99:.2f}x")
    elif kind == "post":
        plain, listening = await posting(server, subscriptions=100, rounds=80)
        print(f"{store}: a post without subscriptions:  {plain}")
        print(f"{store}: with 100 subscriptions:        {listening}")
        print(f"{store}: median {listening.p50 / plain.p50:.2f}x")
    else:
        idle = await idling(server, queues=1_000, each=10, seconds=20)
        print(f"{store}: 10,000 subscriptions on 1,000 queues in {idle.making:.1f} s")
        print(f"{store}: then idle: {idle.share:.2%} of a core")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("dead", "post", "idle"))
    parser.add_argument("--store", default="embedded")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        store = arguments.store
        if store == "redis":
            store = stack.enter_context(start_redis()).url
        elif store == "mongodb":
            store = stack.enter_context(start_mongo()).url
        elif store == "embedded":
            store = f"embedded://{stack.enter_context(tempfile.TemporaryDirectory())}/data"
        server = stack.enter_context(ServerProcess(store, env=ENVIRONMENT))
        asyncio.run(_report(arguments.kind, server, re.sub(":.*", "", arguments.store)))


if __name__ == "__main__":
    main()
