"""Measure the server beside a bare ASGI echo: `python -m tests.speed [--store URI]`.

Rounds are interleaved (echo, then every scenario, then again), each figure is the median over the
rounds, and ratios are taken against the echo of the same round, so that they hold when the speed of
the machine drifts. The load generator is `zaqar-lite bench` on the same machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from tests.server import ServerProcess
from tests.services.process import Process, free_port, listens, wait_until

SCENARIOS = ("post1", "get1", "claim1", "post20", "list20", "claim20", "cycle")
Message = MutableMapping[str, Any]


async def echo(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Answer a request with its own body: the least that any ASGI server does."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def bench(url: str, scenario: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one scenario of `zaqar-lite bench`; answer its figures."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [
                *(sys.executable, "-m", "zaqar_lite.cli", "bench", "--url", url),
                *("--scenario", scenario, "--seconds", str(arguments.seconds)),
                *("--connections", str(arguments.connections), "--json", file.name),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        document: dict[str, Any] = json.loads(Path(file.name).read_text())
    figures: dict[str, Any] = document["results"][0]
    return figures


def start_echo() -> tuple[Process, str]:
    """Start the echo on the same server software with the same options."""
    port = free_port()
    process = Process(
        [
            *(sys.executable, "-m", "uvicorn", "tests.speed:echo", "--port", str(port)),
            *("--loop", "uvloop", "--http", "httptools", "--log-level", "error"),
            *("--no-access-log", "--lifespan", "off", "--no-server-header", "--no-date-header"),
        ],
        log=Path(tempfile.mkdtemp()) / "echo.log",
        cwd=Path(__file__).parents[1],
    )
    process.start()
    wait_until(lambda: listens(port), [process], timeout=20)
    return process, f"http://127.0.0.1:{port}"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    arguments = parser.parse_args()
    scenarios = arguments.scenarios.split(",")
    echoed: list[dict[str, Any]] = []
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in scenarios}
    process, echo_url = start_echo()
    try:
        with ServerProcess(arguments.store, "--workers", arguments.workers) as server:
            for _ in range(arguments.rounds):
                echoed.append(bench(echo_url, "post1", arguments))
                for name in scenarios:
                    measured[name].append(bench(server.url, name, arguments))
    finally:
        process.terminate()
    baseline = [figures["requests_per_second"] for figures in echoed]
    print(
        f"store {arguments.store}, {arguments.rounds} rounds of {arguments.seconds:g} s, "
        f"{arguments.connections} connections, medians"
    )
    print(
        f"{'scenario':10}{'messages/s':>12}{'requests/s':>12}{'of echo':>9}"
        f"{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>8}"
    )
    print(_row("echo", echoed, baseline))
    for name in scenarios:
        print(_row(name, measured[name], baseline))


def _row(name: str, runs: list[dict[str, Any]], baseline: list[float]) -> str:
    def median(key: str) -> float:
        return statistics.median(run[key] or 0 for run in runs)

    ratio = statistics.median(
        run["requests_per_second"] / base for run, base in zip(runs, baseline, strict=True)
    )
    return (
        f"{name:10}{median('messages_per_second'):>12,.0f}{median('requests_per_second'):>12,.0f}"
        f"{ratio:>9.2f}{median('p50_ms'):>9.2f}{median('p99_ms'):>9.2f}"
        f"{median('server_cpu_us'):>8.0f}"
    )


if __name__ == "__main__":
    main()
