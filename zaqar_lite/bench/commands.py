"""The command `zaqar-lite bench` and the run behind it."""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from zaqar_lite.bench import machine, pickup, webhook
from zaqar_lite.bench.connection import Connection, Pace, Script, Tally
from zaqar_lite.bench.scenarios import SCENARIOS, Scenario, Target, fill
from zaqar_lite.commands.argument_types import above_zero, at_least
from zaqar_lite.commands.base_command import FAILED, OK, UNAVAILABLE, USAGE
from zaqar_lite.environment import client_value

_BUSY = 0.7


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one scenario: rates per second, latencies in milliseconds, CPU in us."""

    scenario: str
    seconds: float
    requests_per_second: float
    messages_per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    server_cpu_us: float | None
    generator_cpu_us: float
    generator_busy: float
    refused: dict[int, int]


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare `bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="measure a server",
        description="Load any Zaqar v2 server: closed loop by default, open loop with --rate. "
        "Scenarios: " + "; ".join(f"{one.name}: {one.description}" for one in SCENARIOS.values()),
    )
    parser.add_argument(
        "--url",
        default=client_value("URL") or "http://127.0.0.1:8888",
        help="the server, without TLS (ZAQAR_LITE_URL, else http://127.0.0.1:8888)",
    )
    scenarios = "post1,post20,post100,list20,claim20,cycle"
    parser.add_argument(
        "--scenario", default=scenarios, metavar="A,B,...", help=f"which, in turn ({scenarios})"
    )
    parser.add_argument(
        "--post-url", help="pickup: post to another process of the server, which listens there"
    )
    parser.add_argument("--keys", action="store_true", help="post with idempotency keys")
    parser.add_argument("--seconds", type=above_zero, default=5.0, help="length of each (5)")
    text = "requests, or claims that wait, at a time (16)"
    parser.add_argument("--connections", type=at_least(1), default=16, help=text)
    parser.add_argument("--rate", type=above_zero, help="requests a second, whatever the answers")
    parser.add_argument("--project", default="bench", help="where its queues are made (bench)")
    parser.add_argument("--token", help="value of X-Auth-Token")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the scenarios and print their figures.

    The exit code is 1 when a request was refused, 2 for an unknown scenario or an address that is
    none, 4 when the server does not answer or goes away.
    """
    names = arguments.scenario.split(",")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        return _wrong(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    for url in filter(None, (arguments.url, arguments.post_url)):
        if not _is_address(url):
            return _wrong(f"{url!r} is not an address such as http://127.0.0.1:8888")
    where = machine.describe()
    sys.stdout.write(" ".join(f"{name}={value!r}" for name, value in where.items()) + "\n")
    results = []
    for name in names:
        try:
            result = asyncio.run(measure(SCENARIOS[name], arguments))
        except OSError as error:
            return _wrong(f"no answer from {arguments.url}: {error}", UNAVAILABLE)
        results.append(result)
        sys.stdout.write(_line(result) + "\n")
        sys.stdout.flush()
    if arguments.json is not None:
        document = {"machine": where, "results": [asdict(result) for result in results]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return FAILED if any(result.refused for result in results) else OK


def _wrong(text: str, code: int = USAGE) -> int:
    sys.stderr.write(f"zaqar-lite bench: {text}\n")
    return code


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


async def measure(
    scenario: Scenario, arguments: argparse.Namespace, store_pids: Sequence[int] = ()
) -> Result:
    """Run a scenario; the CPU of processes that serve as its store counts as the server's."""
    target = _target(arguments, arguments.url)
    needed = max(scenario.filled, int(scenario.filled_per_second * arguments.seconds))
    if needed:
        await _play([fill(target, needed)], target, Tally(), Pace(None), float("inf"))
    pids = [*machine.server_processes(target.port), *store_pids]
    tally = Tally()
    server_before, own_before = machine.cpu_seconds(pids), _own_cpu()
    started = time.perf_counter()
    until = started + arguments.seconds
    if scenario.name == "pickup":
        post_to = _target(arguments, arguments.post_url or arguments.url)
        post_to.queue = target.queue
        workers, rate = arguments.connections, arguments.rate
        await pickup.measure(target, post_to, workers, tally, rate=rate, until=until)
    elif scenario.script is None:
        batch = int(scenario.name.removeprefix("webhook") or 1)
        await webhook.measure(target, arguments.connections, tally, batch=batch, until=until)
    else:
        scripts = [scenario.script(target, tally) for _ in range(arguments.connections)]
        await _play(scripts, target, tally, Pace(arguments.rate), until)
    elapsed = max(tally.last_answer - started, 1e-9)
    server, own = machine.cpu_seconds(pids) - server_before, _own_cpu() - own_before
    await _play([_drop(target)], target, Tally(), Pace(None), float("inf"))
    count = len(tally.latencies)
    return Result(
        scenario=scenario.name,
        seconds=elapsed,
        requests_per_second=count / elapsed,
        messages_per_second=tally.messages / elapsed,
        p50_ms=statistics.median(tally.latencies) * 1000 if count else 0.0,
        p99_ms=sorted(tally.latencies)[int(count * 0.99)] * 1000 if count else 0.0,
        max_ms=max(tally.latencies, default=0.0) * 1000,
        server_cpu_us=server / count * 1e6 if pids and count else None,
        generator_cpu_us=own / max(count, 1) * 1e6,
        generator_busy=own / elapsed,
        refused=tally.refused,
    )


async def _play(
    scripts: list[Script], target: Target, tally: Tally, pace: Pace, until: float
) -> None:
    loop = asyncio.get_running_loop()
    playing = []
    for script in scripts:
        _, connection = await loop.create_connection(
            lambda script=script: Connection(script, tally, pace, until),  # type: ignore[misc]
            target.host,
            target.port,
        )
        playing.append(connection.done)
    waker = asyncio.create_task(pace.run(until)) if pace.is_open else None
    if waker is not None:
        await waker
        for done in playing:
            if not done.done():
                done.set_result(None)
    for outcome in await asyncio.gather(*playing, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _drop(target: Target) -> Script:
    yield target.request("DELETE", "")


def _target(arguments: argparse.Namespace, url: str) -> Target:
    parts = urlsplit(url)
    headers = f"Client-ID: {uuid.uuid4()}\r\nX-Project-Id: {arguments.project}\r\n"
    if arguments.token:
        headers += f"X-Auth-Token: {arguments.token}\r\n"
    return Target(
        parts.hostname or "127.0.0.1",
        parts.port or 80,
        parts.path.rstrip("/"),
        arguments.keys,
        headers,
    )


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _line(result: Result) -> str:
    server = "-" if result.server_cpu_us is None else f"{result.server_cpu_us:.0f}"
    line = (
        f"{result.scenario:8} {result.messages_per_second:10,.0f} messages/s "
        f"{result.requests_per_second:9,.0f} requests/s  p50 {result.p50_ms:.2f} ms  "
        f"p99 {result.p99_ms:.2f} ms  max {result.max_ms:.1f} ms  server {server} us/request  "
        f"generator {result.generator_cpu_us:.0f} us/request"
    )
    if result.refused:
        line += f"  REFUSED {result.refused}"
    if result.generator_busy > _BUSY:
        line += f"  (the generator took {result.generator_busy:.0%} of a core)"
    return line
