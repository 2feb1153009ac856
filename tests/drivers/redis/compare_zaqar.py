"""Measure us beside Zaqar's own Redis driver: `python -m tests.drivers.redis.compare_zaqar PYTHON`.

PYTHON is that of a virtual environment with Zaqar:

    python -m venv /tmp/zaqar && /tmp/zaqar/bin/pip install zaqar==23.0.1 gunicorn redis

One Redis, a database for each; two workers each (Zaqar's with eight threads under gunicorn); the
rounds are interleaved and the figures are medians, so that both see the same machine.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from tests import services
from tests.server import ServerProcess
from tests.services.process import Process, free_port, listens, wait_until
from tests.speed import bench

SCENARIOS = ("post1", "post20", "list20", "claim20", "cycle")
CONFIGURATION = """\
[DEFAULT]
unreliable = True
auth_strategy =
[profiler]
enabled = False
[drivers]
message_store = redis
management_store = redis
[drivers:message_store:redis]
uri = {uri}
[drivers:management_store:redis]
uri = {uri}
"""
APPLICATION = """\
from oslo_config import cfg
cfg.find_config_files = lambda *_, **__: [{path!r}]
from zaqar.transport.wsgi.app import app
"""


def start_zaqar(python: str, home: Path, uri: str) -> tuple[Process, str]:
    """Start Zaqar under gunicorn; answer its process and its URL."""
    (home / "zaqar.conf").write_text(CONFIGURATION.format(uri=uri))
    (home / "upstream.py").write_text(APPLICATION.format(path=str(home / "zaqar.conf")))
    port = free_port()
    process = Process(
        [
            *(python, "-m", "gunicorn", "-w", "2", "--threads", "8"),
            *("-b", f"127.0.0.1:{port}", "upstream:app"),
        ],
        log=home / "log",
        cwd=home,
    )
    process.start()
    wait_until(lambda: listens(port), [process], timeout=60)
    return process, f"http://127.0.0.1:{port}"


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--connections", type=int, default=16)
    arguments = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, services.start_redis() as redis:
        zaqar, theirs = start_zaqar(arguments.python, Path(folder), f"{redis.url[:-1]}1")
        ours = ServerProcess(redis.url, "--workers", "2").start()
        try:
            for url in (ours.url, theirs):  # not counted: both warm up
                bench(url, "post1", arguments)
            for _ in range(arguments.rounds):
                for scenario in SCENARIOS:
                    for name, url in (("ours", ours.url), ("zaqar", theirs)):
                        figures = bench(url, scenario, arguments)
                        rates[scenario, name].append(figures["messages_per_second"])
                        costs[scenario, name].append(figures["server_cpu_us"] or 0)
        finally:
            ours.close()
            zaqar.kill()
    for scenario in SCENARIOS:
        mine, other = (statistics.median(rates[scenario, name]) for name in ("ours", "zaqar"))
        cpu, other_cpu = (statistics.median(costs[scenario, name]) for name in ("ours", "zaqar"))
        pairs = zip(rates[scenario, "ours"], rates[scenario, "zaqar"], strict=True)
        ratios = [a / b for a, b in pairs]
        print(
            f"{scenario:8} {mine:8.0f} messages/s, Zaqar {other:6.0f}: {mine / other:5.1f}x "
            f"({min(ratios):.1f}-{max(ratios):.1f}); server CPU {cpu:.0f} and {other_cpu:.0f} us"
        )


if __name__ == "__main__":
    main()
