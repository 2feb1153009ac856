"""Compare this version's cost with another's: `python -m tests.measure_versions CHECKOUT`.

A server of each version, each on a store of its own, answers the scenarios of `zaqar-lite bench` by
turns, so that both see the same machine. Printed is the CPU of a request in the server's processes
and in its Redis, the median of the rounds, and the median and the middle half of this version's
ratio to the other in the same round. CHECKOUT is a directory with the other version's sources
(`git worktree add --detach /tmp/old COMMIT`).
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from pathlib import Path

from tests.server import ServerProcess
from tests.services import start_redis
from zaqar_lite.bench.commands import Result, measure
from zaqar_lite.bench.scenarios import SCENARIOS

STORES = ("memory", "embedded", "redis")
_HERE = Path(__file__).parents[1]
_WARM_UP = 1


class Version:
    """A server of one version, and what its requests took."""

    def __init__(self, checkout: Path, store: str, stack: contextlib.ExitStack) -> None:
        self._store_pids: list[int] = []
        if store == "redis":
            redis = stack.enter_context(start_redis())
            self._store_pids = [process.pid for process in redis.processes]
            store = redis.url
        elif store == "embedded":
            store = f"embedded://{stack.enter_context(tempfile.TemporaryDirectory())}"
        else:
            store = "memory://"
        self._server = stack.enter_context(
            ServerProcess(store, env={"PYTHONPATH": str(checkout)}),
        )

    def measure(self, scenario: str, seconds: float, connections: int) -> Result:
        """Run a scenario."""
        arguments = argparse.Namespace(
            url=self._server.url,
            post_url=None,
            keys=False,
            seconds=seconds,
            connections=connections,
            rate=None,
            project="bench",
            token=None,
        )
        return asyncio.run(measure(SCENARIOS[scenario], arguments, self._store_pids))


def _line(scenario: str, runs: dict[str, list[Result]]) -> str:
    def cost(result: Result) -> float:
        return result.server_cpu_us or 0.0

    ours, theirs = ([cost(one) for one in runs[name]] for name in ("this", "other"))
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    rates = [
        one.requests_per_second / other.requests_per_second
        for one, other in zip(runs["this"], runs["other"], strict=True)
    ]
    return (
        f"{scenario:8}{statistics.median(ours):>10.0f}{statistics.median(theirs):>10.0f}"
        f"{middle:>8.2f}  ({low:.2f} to {high:.2f}){statistics.median(rates):>14.2f}"
    )


def main() -> None:
    """Measure, and print a table for each store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--scenarios", default="post1,list20,claim20,cycle")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--connections", type=int, default=16)
    arguments = parser.parse_args()
    for store in arguments.stores.split(","):
        with contextlib.ExitStack() as stack:
            versions = {
                "this": Version(_HERE, store, stack),
                "other": Version(arguments.checkout.resolve(), store, stack),
            }
            print(f"{store}: {arguments.rounds} rounds of {arguments.seconds:g} s")
            print(f"{'':8}{'CPU us':>10}{'other':>10}{'ratio':>8}{'':>16}{'requests/s':>14}")
            for scenario in arguments.scenarios.split(","):
                runs: dict[str, list[Result]] = {name: [] for name in versions}
                for number in range(_WARM_UP + arguments.rounds):
                    for name in list(versions)[:: 1 if number % 2 else -1]:
                        result = versions[name].measure(
                            scenario, arguments.seconds, arguments.connections
                        )
                        if number >= _WARM_UP:
                            runs[name].append(result)
                print(_line(scenario, runs), flush=True)


if __name__ == "__main__":
    main()
