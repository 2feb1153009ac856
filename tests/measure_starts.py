"""How long the command line takes to begin: `python -m tests.measure_starts [--runs 15]`.

Printed is the CPU time of `zaqar-lite --help`, of a verb's help, and of the completion of a queue's
name, each a process of its own against a server that runs: the least of all runs, which is what it
takes on a quiet machine, and the median. Beside them stands Python alone, which is part of each.
Exit code 1 says that one of them is above its goal. All extras should be installed.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from tests.server import ServerProcess
from zaqar_lite.client import Client

COMMAND = str(Path(sys.executable).with_name("zaqar-lite"))
GOALS = {"zaqar-lite --help": 150.0, "completion of a queue's name": 80.0}


def cpu_of(words: list[str], runs: int) -> list[float]:
    """Return the milliseconds of CPU that each run of a command took."""
    found = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append(1000 * used)
    return found


def main() -> int:
    """Measure; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    missed = False
    with ServerProcess("memory://") as server, Client(server.url) as client:
        client.create_queue("orders")
        line = f"zaqar-lite queue show --url {server.url} or"
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "zaqar-lite --help": [COMMAND, "--help"],
            "zaqar-lite message post --help": [COMMAND, "message", "post", "--help"],
            "completion of a queue's name": [COMMAND, "queue", "names", "--line", line, "--", "or"],
        }
        for name, words in commands.items():
            found = cpu_of(words, runs)
            goal = GOALS.get(name)
            missed |= goal is not None and min(found) > goal
            told = "" if goal is None else f"  (goal: {goal:.0f} ms)"
            median = statistics.median(found)
            print(f"{name:32} {min(found):5.0f} ms of CPU at least, {median:5.0f} median{told}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
