"""Print the bars of the way from the socket to the store: `python -m tests.http_bars [OLD]`.

OLD is an older checkout, which is measured in the same rounds. Every round begins with a bare ASGI
echo on uvicorn, and ratios are taken against the echo of the same round. Without sockets one post
is counted by `tests/http_calls.py`.
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.server import ServerProcess
from tests.services import start_redis
from tests.speed import bench, start_echo

HERE = Path(__file__).parents[1]
_COUNTED = ("api", "server", "main.py", "serve.py", "settings.py", "cli.py")
_ECHO_US = 30.0
"""The CPU time of the echo on the machine for which the bars were set."""
_CONNECTIONS = 15_000
"""How many a server takes; `--idle` is fewer."""
_STORES = ("memory", "embedded", "Redis")
_BARS = {
    "post 1, memory, of the echo": "0.55",
    "post 1, embedded, of the echo": "0.45",
    "post 1, Redis, of the echo": "0.50",
    "claim 20, memory, of the echo": "",
    f"CPU us a post (echo {_ECHO_US:g})": "52",
    "p50 ms, one connection, memory": "0.10",
    "p50 ms, one connection, embedded": "0.45",
    "p50 ms, one connection, Redis": "0.22",
    "KiB of an idle connection": "",
    "calls of a post": "110",
    "of them Python's": "",
    "functions before the store": "",
    "one inside the other": "12",
    "us a post, no sockets": "",
    "us a post, body behind": "",
    "lines": "8,800",
}


def counted(checkout: Path) -> dict[str, float]:
    """What one post costs without sockets."""
    done = subprocess.run(
        [sys.executable, str(HERE / "tests" / "http_calls.py")],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def lines_of(checkout: Path) -> int:
    """The lines of what stands between sockets and services."""
    package = checkout / "zaqar_lite"
    files = [file for name in _COUNTED for file in _files(package / name)]
    return sum(len(file.read_text().splitlines()) for file in files)


def _files(place: Path) -> Iterator[Path]:
    return place.rglob("*.py") if place.is_dir() else iter((place,))


def idle_kib(server: ServerProcess, count: int) -> float:
    """The memory that an idle connection takes, KiB, each after one request."""
    status = Path(f"/proc/{server.pid}/statm")
    page_kib = os.sysconf("SC_PAGE_SIZE") / 1024
    before = int(status.read_text().split()[1])
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            one.recv(4_096)
        after = int(status.read_text().split()[1])
    return (after - before) * page_kib / count


def started(checkout: Path, store: str, stack: contextlib.ExitStack) -> ServerProcess:
    """Start a server of a checkout on a new store of one kind."""
    uri = "memory://"
    if store == "embedded":
        uri = f"embedded://{stack.enter_context(tempfile.TemporaryDirectory())}/store"
    elif store == "Redis":
        uri = stack.enter_context(start_redis()).url
    env = {"PYTHONPATH": str(checkout), "ZAQAR_LITE_MAX_CONNECTIONS": str(_CONNECTIONS)}
    return stack.enter_context(ServerProcess(uri, env=env))


def measured(
    checkouts: list[Path], arguments: argparse.Namespace
) -> dict[Path, dict[str, list[float]]]:
    """Measure all checkouts over sockets, round by round."""
    found: dict[Path, dict[str, list[float]]] = {one: {} for one in checkouts}
    alone = argparse.Namespace(seconds=arguments.seconds, connections=1)
    echo, echo_url = start_echo()
    with contextlib.ExitStack() as stack:
        stack.callback(echo.terminate)
        servers = {
            (one, store): started(one, store, stack) for one in checkouts for store in _STORES
        }
        for one in checkouts:  # before anything else has grown their memory
            idle = idle_kib(servers[one, "memory"], arguments.idle)
            found[one]["KiB of an idle connection"] = [idle]
        for _ in range(arguments.rounds):
            plain = bench(echo_url, "post1", arguments)
            for (one, store), server in servers.items():
                post = bench(server.url, "post1", arguments)
                slowest = bench(server.url, "post1", alone)
                rows = {
                    f"post 1, {store}, of the echo": _ratio(post, plain, "requests_per_second"),
                    f"p50 ms, one connection, {store}": slowest["p50_ms"],
                }
                if store == "memory":
                    claim = bench(server.url, "claim20", arguments)
                    rows |= {
                        "claim 20, memory, of the echo": _ratio(
                            claim, plain, "requests_per_second"
                        ),
                        f"CPU us a post (echo {_ECHO_US:g})": _ECHO_US
                        * _ratio(post, plain, "server_cpu_us"),
                    }
                for name, value in rows.items():
                    found[one].setdefault(name, []).append(value)
    return found


def _ratio(one: dict[str, Any], other: dict[str, Any], name: str) -> float:
    return float(one[name]) / float(other[name])


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--idle", type=int, default=2_000)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    checkouts = [HERE] if arguments.old is None else [HERE, arguments.old.resolve()]
    found = measured(checkouts, arguments)
    for one in checkouts:
        calls = counted(one)
        found[one]["calls of a post"] = [calls["calls"]]
        found[one]["of them Python's"] = [calls["python_calls"]]
        found[one]["functions before the store"] = [calls["functions"]]
        found[one]["one inside the other"] = [calls["depth"]]
        found[one]["us a post, no sockets"] = [calls["microseconds"]]
        found[one]["us a post, body behind"] = [calls["microseconds_in_two"]]
        found[one]["lines"] = [lines_of(one)]
    names = ("here", "before")[: len(checkouts)]
    print(f"{'':34}" + "".join(f"{name:>10}" for name in names) + f"{'bar':>10}")
    for row, bar in _BARS.items():
        values = [f"{statistics.median(found[one][row]):>10,.2f}" for one in checkouts]
        print(f"{row:34}{''.join(values)}{bar:>10}")


if __name__ == "__main__":
    main()
