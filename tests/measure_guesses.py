"""What guessing costs the others: `python -m tests.measure_guesses [--pings] [--seconds 10]`.

A server that knows keys and tokens of a Keystone gets wrong keys and wrong tokens in turn, each
only once, over `--connections` from `--addresses` of loopback. They send `--rate` a second
together, whether or not they are answered; what the server does not read waits in the
connections. Beside them one client posts with a good key, and another with a good token. Printed
are their latencies without and with the guesses, how many guesses were answered what, what the
server computed, and how often Keystone was asked. `--pings` sends good and cheap requests instead,
the next on a connection once the one before was answered: what the machine has no room for shows
there. `--patient` sends guesses in that way, too. `--elsewhere` sends them to nobody, so that what
is left is the machine's share.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import secrets
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.api.sockets import Raw, request
from tests.keystone import Keystone
from tests.server import ServerProcess

_WARM = 2.0
_SENT = 0
_BODY = json.dumps({"messages": [{"body": 1, "ttl": 60}]}).encode()


class Load(NamedTuple):
    """What a flood is: how many requests a second, from where, and what is `good` of it.

    With `waits` the next one on a connection is sent when the one before was answered.
    """

    rate: float
    addresses: int
    connections: int
    good: bytes | None
    waits: bool


class Told(NamedTuple):
    """How a flood went."""

    statuses: Counter[int]
    seconds: float
    sent: int


def wrong(number: int) -> bytes:
    """A request with a credential that nobody has: a key or a token."""
    if number % 2:
        named = {"Authorization": f"Bearer zq_{secrets.token_hex(8)}_{secrets.token_hex(24)}"}
    else:
        named = {"X-Auth-Token": f"gAAAAA{secrets.token_hex(24)}"}
    return request("GET", "/v2/queues", headers=named)


class _Guesser(asyncio.Protocol):
    """One connection that sends its part of the rate: guesses, or what is `good`."""

    def __init__(self, load: Load, statuses: Counter[int]) -> None:
        self._pause = load.connections / load.rate
        self._statuses = statuses
        self._good, self._waits = load.good, load.waits
        self._next = 0.0
        self._sent = secrets.randbelow(2)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._next = self._loop.time() + self._pause * secrets.randbelow(1_000) / 1_000
        self._loop.call_at(self._next, self._guess)

    def _guess(self) -> None:
        assert self._transport is not None
        self._sent += 1
        self._statuses[_SENT] += 1
        self._transport.write(self._good or wrong(self._sent))
        if not self._waits:
            self._go_on()

    def _go_on(self) -> None:
        self._next = max(self._next + self._pause, self._loop.time() - 1)
        self._loop.call_at(self._next, self._guess)

    def data_received(self, data: bytes) -> None:
        for answer in data.split(b"HTTP/1.1 ")[1:]:
            self._statuses[int(answer[:3])] += 1
        if self._waits:
            self._go_on()


def flood(port: int | None, load: Load, told: Connection) -> None:
    """Guess, or send what is good, from a process of its own until told to stop."""

    async def run() -> None:
        statuses: Counter[int] = Counter()
        loop = asyncio.get_running_loop()
        nobody = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        to = port or nobody.sockets[0].getsockname()[1]
        guesser = partial(_Guesser, load, statuses)
        made = []
        for number in range(load.connections):
            source = (f"127.0.1.{1 + number % load.addresses}", 0)
            made.append(await loop.create_connection(guesser, "127.0.0.1", to, local_addr=source))
        await asyncio.sleep(_WARM)
        statuses.clear()
        began = time.perf_counter()
        told.send("goes")
        while not await asyncio.to_thread(told.poll, 0.2):
            pass
        sent = statuses.pop(_SENT)
        told.send(Told(Counter(statuses), time.perf_counter() - began, sent))
        for transport, _ in made:
            transport.abort()

    asyncio.run(run())


def post(server: ServerProcess, named: dict[str, str], seconds: float) -> list[float]:
    """Post one message after the other; answer what each took, in milliseconds."""
    whole = request("POST", "/v2/queues/orders/messages", _BODY, headers=named)
    took: list[float] = []
    with Raw(server) as link:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            began = time.perf_counter()
            link.send(whole)
            answer = link.answer()
            took.append((time.perf_counter() - began) * 1000)
            assert answer.status == 201, answer
            time.sleep(0.002)
    return took


def computed(pid: int) -> float:
    """The seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shown(name: str, before: Sequence[float], beside: Sequence[float]) -> str:
    """The latencies of a good client, and how they compare."""
    parts = []
    for label, at in (("p50", 50), ("p99", 99)):
        was, now = (statistics.quantiles(took, n=100)[at - 1] for took in (before, beside))
        parts.append(f"{label} {was:.2f} to {now:.2f} ms ({now / was:.2f}x)")
    return f"a good {name}: {', '.join(parts)}; {len(beside)} posts"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--addresses", type=int, default=1)
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--pings", action="store_true")
    parser.add_argument("--patient", action="store_true")
    parser.add_argument("--elsewhere", action="store_true")
    given = parser.parse_args()
    with TemporaryDirectory() as home, Keystone() as keystone:
        file = Path(home, "admin.key")
        env = {
            "ZAQAR_LITE_AUTH": "keys,keystone",
            "ZAQAR_LITE_KEYSTONE_URL": keystone.url,
            "ZAQAR_LITE_ADMIN_KEY_FILE": str(file),
        }
        with ServerProcess("memory://", env=env).start(ready=401) as server:
            good = {
                "key": {"Authorization": f"Bearer {file.read_text().strip()}"},
                "token": {"X-Auth-Token": keystone.issue("member")},
            }

            def posted(seconds: float) -> dict[str, list[float]]:
                found: dict[str, list[float]] = {}

                def one(name: str) -> None:
                    found[name] = post(server, good[name], seconds)

                threads = [threading.Thread(target=one, args=(name,)) for name in good]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return found

            ping = request("GET", "/v2/ping", headers=good["key"]) if given.pings else None
            posted(_WARM)
            began = computed(server.pid)
            before = posted(given.seconds)
            alone = computed(server.pid) - began
            told, other = multiprocessing.Pipe()
            context = multiprocessing.get_context("spawn")
            waits = given.pings or given.patient
            load = Load(given.rate, given.addresses, given.connections, ping, waits)
            port = None if given.elsewhere else server.port
            process = context.Process(target=flood, args=(port, load, other))
            process.start()
            told.recv()
            lookups, began = len(keystone.lookups), computed(server.pid)
            beside = posted(given.seconds)
            spent, asked = computed(server.pid) - began, len(keystone.lookups) - lookups
            told.send("stop")
            how: Told = told.recv()
            process.join()
    count = how.statuses.total()
    sent, answered = how.sent / how.seconds, count / how.seconds
    what = "pings" if given.pings else "guesses"
    print(f"{sent:.0f} {what} a second were sent, {answered:.0f} answered")
    print(f"the answers: {dict(how.statuses)}")
    for name in good:
        print(shown(name, before[name], beside[name]))
    busy, idle = spent / given.seconds, alone / given.seconds
    print(f"the server computed {busy:.0%} of a core, {idle:.0%} before")
    print(f"Keystone was asked {asked / given.seconds:.2f} times a second")


if __name__ == "__main__":
    main()
