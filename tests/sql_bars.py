"""Print the bars of issue 35 beside an old checkout: `python -m tests.sql_bars [OLD_CHECKOUT]`.

Every figure is measured in a process of its own, in rounds in which the two checkouts take turns,
and the median is printed with what it must be. `--scale 0.1` makes everything large a tenth as
large; `--only rates cycles` chooses groups.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from zaqar_lite.domain import models
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.registry import create_stores

TASKS = 32
SECONDS = 2.0
DAY = 86_400_000
QUEUES = [QueueRef("bars", f"queue-{number}") for number in range(4)]
OTHER = QueueRef("bars", "other")
SMALL, LARGE = json.dumps("x" * 105).encode(), json.dumps("x" * 198).encode()
Figures = dict[str, float]
_ClaimRequest = getattr(models, "ClaimRequest", None) or vars(models)["Take"]  # its name until 0.3


BARS: dict[str, tuple[str, float]] = {
    "post 1, /s": (">= x", 1.3),
    "post 20, /s": (">= x", 1.3),
    "claim 20, /s": (">= x", 1.1),
    "settle 20, /s": (">= x", 1.1),
    "delete 20, /s": (">= x", 1.1),
    "one task, post 1, p50 ms": ("<= x", 1),
    "cycles, /s": (">= x", 2),
    "cycles, p99 ms": ("<=", 34),
    "claim 20 behind many, of an empty queue": ("<=", 1.2),
    "post 1 behind many, of an empty queue": ("<=", 1.2),
    "messages, MB resident": ("<=", 150),
    "messages, bytes each on disk": ("<=", 500),
    "messages, s to start": ("<=", 1),
    "delayed, MB resident": ("<=", 60),
    "empty queues, bytes each on disk": ("<=", 600),
    "empty queues, s to start": ("<=", 1),
    "empty queues, ms of CPU a sweep": ("<=", 1),
    "delete many, ms": ("<=", 50),
    "posts beside it, p99 of that before": ("<=", 2),
    "longest gap of the loop, ms": ("<=", 10),
    "longest log, MiB": ("<=", 64),
    "after all is deleted, of its peak": ("<=", 0.25),
}
"""What a figure must be: a number, or (x) so many times the old one. In RAM there is no bar."""


def stores(uri: str) -> tuple[MessageStore, ManagementStore]:
    """The two stores of a URI, not yet open."""
    return create_stores(uri, clock=Clock(), options=StoreOptions(max_messages=1 << 60))


async def post(messages: MessageStore, queue: QueueRef, count: int, delay: int = 0) -> None:
    """Post messages of 200 bytes by the five hundred."""
    for first in range(0, count, 500):
        new = [NewMessage(LARGE, DAY, delay)] * min(500, count - first)
        await messages.post(queue, new, client_id="producer", version=None)


async def claim(messages: MessageStore, queue: QueueRef, limit: int = 20) -> Claimed:
    """Claim messages of a normal queue for a day."""
    request = _ClaimRequest(
        limit, None, DelayMode.HONOUR, ttl_ms=DAY, grace_ms=DAY, client_id="consumer"
    )
    return await messages.claim(queue, request)


async def delete_all(messages: MessageStore, queue: QueueRef, claimed: Claimed) -> None:
    """Delete what a claim holds."""
    ids = [message.id for message in claimed.messages]
    await messages.delete(queue, ids, claim_ids=[claimed.claim_id or ""])


async def repeat(work: Callable[[int], Awaitable[bool]], tasks: int = TASKS) -> list[float]:
    """Let tasks do something for SECONDS, or until it is over; answer what each time took."""
    took: list[float] = []
    ends = time.perf_counter() + SECONDS

    async def run(number: int) -> None:
        while (begun := time.perf_counter()) < ends:
            if not await work(number):
                return
            took.append(time.perf_counter() - begun)

    await asyncio.gather(*map(run, range(tasks)))
    return took


async def rate(work: Callable[[int], Awaitable[bool]]) -> float:
    """How often something was done in a second, by all tasks together."""
    begun = time.perf_counter()
    return len(await repeat(work)) / (time.perf_counter() - begun)


def at(took: Sequence[float], part: float) -> float:
    """A quantile, in milliseconds."""
    return sorted(took)[int(len(took) * part)] * 1_000 if took else 0.0


async def rates(uri: str, _: float) -> Figures:
    """Posts, claims, settlements and deletions, 32 tasks over 4 queues."""
    messages, _management = stores(uri)
    held: list[tuple[QueueRef, Claimed]] = []
    one, twenty = [NewMessage(SMALL, DAY)], [NewMessage(SMALL, DAY)] * 20

    async def post_some(number: int, new: list[NewMessage]) -> bool:
        await messages.post(QUEUES[number % 4], new, client_id="producer", version=None)
        return True

    async def claim_some(number: int) -> bool:
        claimed = await claim(messages, QUEUES[number % 4])
        if claimed.claim_id is not None:
            held.append((QUEUES[number % 4], claimed))
        return claimed.claim_id is not None

    async def end(*, settles: bool) -> bool:
        if not held:
            return False
        queue, claimed = held.pop()
        if settles:
            done = [Settlement(message.id, Act.ACK) for message in claimed.messages]
            await messages.settle(queue, claimed.claim_id or "", done)
        else:
            await delete_all(messages, queue, claimed)
        return True

    async with messages:
        found = {"post 1, /s": await rate(lambda number: post_some(number, one))}
        found["post 20, /s"] = await rate(lambda number: post_some(number, twenty))
        found["claim 20, /s"] = await rate(claim_some)
        found["settle 20, /s"] = await rate(lambda _: end(settles=True))
        held.clear()
        for queue in QUEUES:
            await messages.purge(queue)
            await post(messages, queue, 40_000)
        await asyncio.gather(*[claim_some(number) for number in range(8_000)])
        found["delete 20, /s"] = await rate(lambda _: end(settles=False))
        took = await repeat(lambda number: post_some(number, one), 1)
        found["one task, post 1, p50 ms"] = at(took, 0.5)
    return found


async def rates_in_ram(_: str, scale: float) -> Figures:
    """The same in RAM."""
    return {f"RAM: {name}": value for name, value in (await rates("memory://", scale)).items()}


async def cycles(uri: str, scale: float) -> Figures:
    """Post, claim and delete over 400 queues that hold 200,000 messages, 32 tasks."""
    messages, _management = stores(uri)
    queues = [QueueRef(f"bars-{number % 4}", f"queue-{number}") for number in range(400)]
    gaps, logs, over = [0.0], [0], asyncio.Event()

    async def watch() -> None:
        before = time.perf_counter()
        while not over.is_set():
            await asyncio.sleep(0)
            gaps.append(time.perf_counter() - before)
            if len(gaps) % 200 == 0:
                logs.append(on_disk(uri, "*-wal"))
            before = time.perf_counter()

    async def cycle(number: int) -> bool:
        queue = queues[(number * 13 + len(gaps)) % 400]
        await messages.post(queue, [NewMessage(SMALL, DAY)], client_id="producer", version=None)
        claimed = await claim(messages, queue, 1)
        await delete_all(messages, queue, claimed)
        return True

    async with messages:
        for queue in queues:
            await post(messages, queue, int(500 * scale) or 1)
        begun = time.perf_counter()
        took = await repeat(cycle)
        found = {
            "cycles, /s": len(took) / (time.perf_counter() - begun),
            "cycles, p99 ms": at(took, 0.99),
        }
        watching = asyncio.create_task(watch())
        for _ in range(3):
            await repeat(cycle)
        over.set()
        await watching
    found["longest gap of the loop, ms"] = max(gaps) * 1_000
    found["longest log, MiB"] = max(logs) / (1 << 20)
    return found


async def behind(uri: str, scale: float) -> Figures:
    """A claim of 20 and a post behind a million delayed and a million claimed messages."""
    messages, _management = stores(uri)
    took: dict[tuple[str, QueueRef], list[float]] = {}
    async with messages:
        await post(messages, QUEUES[0], int(1_000_000 * scale))
        while (await claim(messages, QUEUES[0], 500)).claim_id is not None:
            pass
        await post(messages, QUEUES[0], int(1_000_000 * scale), DAY // 2)
        for queue in (QUEUES[0], OTHER):
            await post(messages, queue, 1_000)
        for _ in range(300):
            for queue in (OTHER, QUEUES[0]):
                begun = time.perf_counter()
                claimed = await claim(messages, queue)
                took.setdefault(("claim 20", queue), []).append(time.perf_counter() - begun)
                await delete_all(messages, queue, claimed)
                begun = time.perf_counter()
                await post(messages, queue, 1)
                took.setdefault(("post 1", queue), []).append(time.perf_counter() - begun)
                await post(messages, queue, 19)
    return {
        f"{name} behind many, of an empty queue": statistics.median(took[name, QUEUES[0]])
        / statistics.median(took[name, OTHER])
        for name in ("claim 20", "post 1")
    }


async def million(uri: str, scale: float) -> Figures:
    """A million messages of 200 bytes: memory, disk, a start, and what is left of the disk."""
    count = int(1_000_000 * scale)
    messages, _management = stores(uri)

    async def elsewhere(_: int) -> bool:
        await post(messages, OTHER, 1)
        return True

    async with messages:
        await post(messages, QUEUES[0], count)
        found = {"messages, MB resident": resident()}
    peak = on_disk(uri)
    found["messages, bytes each on disk"] = peak / count
    messages, _management = stores(uri)
    begun = time.perf_counter()
    async with messages:
        await messages.stats(QUEUES[0])
        found["messages, s to start"] = time.perf_counter() - begun
        await post(messages, OTHER, 1_000)
        before = await repeat(elsewhere, 1)
        begun = time.perf_counter()
        await messages.purge(QUEUES[0], forget=True)
        found["delete many, ms"] = (time.perf_counter() - begun) * 1_000
        sweeping = asyncio.create_task(sweep(messages, 60))
        beside = await repeat(elsewhere, 1)
        found["posts beside it, p99 of that before"] = at(beside, 0.99) / at(before, 0.99)
        await messages.purge(OTHER, forget=True)
        await sweeping
        await sweep(messages, 10)
    found["after all is deleted, of its peak"] = on_disk(uri) / peak
    return found


async def sweep(messages: MessageStore, seconds: float) -> None:
    """Sweep as the server does, until there is nothing to do for a while."""
    ends, idle = time.perf_counter() + seconds, 0
    while time.perf_counter() < ends and idle < 20:
        idle = 0 if (await messages.sweep(1_000)).total else idle + 1
        await asyncio.sleep(0.01)


async def delayed(uri: str, scale: float) -> Figures:
    """300,000 delayed messages: memory above that of an idle store."""
    messages, _management = stores(uri)
    async with messages:
        await post(messages, OTHER, 100)
        idle = resident()
        await post(messages, QUEUES[0], int(300_000 * scale), DAY // 2)
        return {"delayed, MB resident": resident() - idle}


async def empty_queues(uri: str, scale: float) -> Figures:
    """100,000 queues without messages."""
    count, found = int(100_000 * scale), Figures()
    messages, management = stores(uri)
    async with messages, management:
        for first in range(0, count, 500):
            names = [f"queue-{number:06}" for number in range(first, first + 500)]
            made = (
                management.create_queue(QueueRef("bars", name), {}, max_queues=1 << 30)
                for name in names
            )
            await asyncio.gather(*made)
    found["empty queues, bytes each on disk"] = on_disk(uri) / count
    messages, management = stores(uri)
    begun = time.perf_counter()
    async with messages, management:
        await management.get_queue(QueueRef("bars", "queue-000001"))
        found["empty queues, s to start"] = time.perf_counter() - begun
        await sweep(messages, 30)
        used = time.process_time()
        for _ in range(100):
            await messages.sweep(1_000)
        found["empty queues, ms of CPU a sweep"] = (time.process_time() - used) * 10
    return found


def resident() -> float:
    """Megabytes of memory of this process and its children."""
    me, pages = os.getpid(), 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if me in {parent, int(entry.name)}:
                pages += int((entry / "statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def on_disk(uri: str, names: str = "*") -> int:
    """Bytes that files of a store have on disk."""
    files = Path(uri.partition("://")[2]).rglob(names)
    return sum(one.stat().st_blocks * 512 for one in files if one.is_file())


GROUPS = {
    one.__name__: one
    for one in (rates, rates_in_ram, cycles, delayed, million, empty_queues, behind)
}


def measure(checkout: Path, group: str, scale: float) -> Figures:
    """Run a group of figures with the code of a checkout, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--measure", group]
        done = subprocess.run(
            [*command, "--uri", f"embedded://{directory}/data", "--scale", str(scale)],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{checkout}: {group} failed: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(new: dict[str, list[float]], old: dict[str, list[float]]) -> Iterable[str]:
    """The lines of the table."""
    for name, values in new.items():
        figure, before = statistics.median(values), old.get(name)
        beside = None if not before else statistics.median(before)
        kind, bound = BARS.get(name, ("", 0.0))
        limit = bound * (beside or 0.0) if "x" in kind else bound
        holds = (
            figure >= limit if ">" in kind else figure <= limit or (beside is None and "x" in kind)
        )
        verdict = f"{kind:>4} {bound:g}  {'holds' if holds else 'MISSED'}" if kind else ""
        ratio = "" if not beside else f"{figure / beside:6.2f}x"
        shown = "" if beside is None else f"{beside:,.2f}"
        yield f"{name:42} {figure:12,.2f} {shown:>12} {ratio:>7} {verdict}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", type=Path, help="a checkout to compare with")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--measure", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asyncio.run(GROUPS[options.measure](options.uri, options.scale))))
        return
    checkouts = [Path(__file__).resolve().parents[1], *([options.old] if options.old else [])]
    print(f"{'':42} {'new':>12} {'old':>12} {'':>7} {'must':>9}")
    for group in options.only:
        found: list[dict[str, list[float]]] = [{} for _ in checkouts]
        for _ in range(options.rounds if group.startswith(("rates", "cycles")) else 1):
            for checkout, figures in zip(checkouts, found, strict=True):
                for name, value in measure(checkout, group, options.scale).items():
                    figures.setdefault(name, []).append(value)
        for line in table(found[0], found[-1] if options.old else {}):
            print(line, flush=True)


if __name__ == "__main__":
    main()
