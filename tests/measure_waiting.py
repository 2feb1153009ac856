"""Measure what idle waiters cost: `python -m tests.measure_waiting [--store URI] [--all]`.

A fleet of 100 workers on ten queues that have nothing: seconds of CPU of the server's processes,
over `--seconds` of `claims?wait=20`, asked again as it ends. With `--all` also 10,000 waiters on
1,000 queues in ten projects (`wait=60`): the memory that they take in the server, and its CPU.
"""

import argparse
import asyncio
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from tests.server import ServerProcess
from zaqar_lite.bench import machine

_CLIENT = "3381af92-2b9e-11e3-b191-71861300734c"
_PROJECTS = 10
_ROOM = {
    f"ZAQAR_LITE_{name}": "12000"
    for name in ("MAX_CONNECTIONS", "MAX_WAITERS", "MAX_WAITERS_PER_PROJECT")
}
_STEP = 100
"""Connections that are opened at a time: not more than the server's backlog."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What waiters cost: of one core, and bytes of memory that they took."""

    waiters: int
    queues: int
    core: float
    memory: int

    def __str__(self) -> str:
        return (
            f"{self.waiters:,} waiters on {self.queues:,} queues: {self.core:.2%} of a core, "
            f"{self.memory / 1e6:.0f} MB"
        )


async def measure(server: ServerProcess, waiters: int, queues: int, wait: int, over: float) -> Cost:
    """Let `waiters` claims wait on `queues` empty queues; the cost of `over` seconds of that."""
    pids = [server.pid, *machine.descendants(server.pid)]
    memory = _memory(pids)
    waiting: list[asyncio.Task[None]] = []
    try:
        for number in range(waiters):
            waiting.append(asyncio.create_task(_wait(server.port, number % queues, wait)))
            if len(waiting) % _STEP == 0:
                await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        started, cpu = time.perf_counter(), machine.cpu_seconds(pids)
        await asyncio.sleep(over)
        cpu, elapsed = machine.cpu_seconds(pids) - cpu, time.perf_counter() - started
        failed = [task for task in waiting if task.done()]
        if failed:
            raise RuntimeError(f"{len(failed)} waiters ended: {failed[0].exception()!r}")
        return Cost(waiters, queues, cpu / elapsed, _memory(pids) - memory)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _wait(port: int, queue: int, wait: int) -> None:
    """Claim from an empty queue, over and over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = (
        f"POST /v2/queues/idle-{queue}/claims?limit=1&wait={wait} HTTP/1.1\r\n"
        f"Host: 127.0.0.1\r\nClient-ID: {_CLIENT}\r\nX-Project-ID: p{queue % _PROJECTS}\r\n\r\n"
    ).encode()
    try:
        while True:
            writer.write(request)
            status = (await reader.readuntil(b"\r\n\r\n"))[9:12]
            if status != b"204":
                raise RuntimeError(f"a waiting claim was answered {status.decode()}")
    finally:
        writer.close()


def _memory(pids: list[int]) -> int:
    """Resident memory of processes, in bytes."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * resource.getpagesize()


def main() -> None:
    """Measure, and print a line for each fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--all", action="store_true", help="10,000 waiters, too")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fleets = [(100, 10, 20)] + ([(10_000, 1_000, 60)] if arguments.all else [])
    for waiters, queues, wait in fleets:
        with ServerProcess(arguments.store, env=_ROOM) as server:
            cost = asyncio.run(measure(server, waiters, queues, wait, arguments.seconds))
            print(cost, flush=True)
            log = server.log()
            if "Traceback" in log:
                raise RuntimeError(log)


if __name__ == "__main__":
    main()
