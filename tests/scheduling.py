"""Which files the workers of a parallel run take first, and which stay together on one worker.

pytest-xdist hands out whole files (`--dist loadfile`), by itself those with the most tests first.
Files with few but long tests would then come last, and one worker would still be busy with them
when the others have nothing left.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

LONGEST = (
    "tests/spark/",
    "tests/drivers/swift/",
    "tests/compat/test_tempest.py",
    "tests/contract/test_model.py",
    "tests/test_bounded.py",
    "tests/rabbitmq/",
    "tests/contract/",
    "tests/compat/",
    "tests/drivers/mongodb/",
    "tests/api/test_keystone.py",
    "tests/api/test_openapi.py",
    "tests/api/test_connections.py",
    "tests/api/test_events.py",
    "tests/test_draining.py",
    "tests/test_compose.py",
    "tests/test_serve.py",
    "tests/test_starting.py",
    "tests/test_operating.py",
    "tests/docs/",
    "tests/ui/",
    "tests/service/test_killed.py",
    "tests/push/",
    "tests/drivers/",
    "tests/commands/",
    "tests/client/test_documentation.py",
    "tests/client/test_waiting.py",
)
"""Files and folders that take long, the longest first; a run prints its ten longest files."""

TOGETHER = ("tests/spark/", "tests/drivers/swift/")
"""Folders that stay on one worker: a Spark session's JVM is each worker's own, and the run's one
Swift node, asked by all workers at once, would answer later than these tests wait."""


def file_of(node_id: str) -> str:
    """Return the file of a test."""
    return node_id.partition("::")[0]


def longest_first(files: Sequence[str]) -> list[str]:
    """Sort the files of tests, one entry a test: the longest first, then those with most tests."""
    tests = Counter(files)

    def rank(file: str) -> tuple[int, int]:
        places = (n for n, start in enumerate(LONGEST) if file.startswith(start))
        return next(places, len(LONGEST)), -tests[file]

    return sorted(tests, key=rank)


def folder_of(node_id: str) -> str:
    """Return the folder of a test: a driver's, or the one below tests/."""
    parts = file_of(node_id).split("/")[:-1]
    return "/".join(parts[: 3 if parts[1:2] == ["drivers"] else 2])


def longest(
    reports: Iterable[pytest.TestReport], place: Callable[[str], str], most: int
) -> list[tuple[str, float, int]]:
    """Return the `most` places whose tests took longest, with their seconds and their tests."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: defaultdict[str, set[str]] = defaultdict(set)
    for report in reports:
        seconds[place(report.nodeid)] += report.duration
        tests[place(report.nodeid)].add(report.nodeid)
    names = sorted(seconds, key=lambda name: -seconds[name])[:most]
    return [(name, seconds[name], len(tests[name])) for name in names]


def unit_of(node_id: str) -> str:
    """Return what is handed to a worker in one piece: a test's file, or its folder."""
    file = file_of(node_id)
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def sort_items(items: list[pytest.Item]) -> None:
    """Sort collected tests by their files; within a file their order stays."""
    order = {
        file: number
        for number, file in enumerate(longest_first([file_of(item.nodeid) for item in items]))
    }
    items.sort(key=lambda item: order[file_of(item.nodeid)])


def make_scheduler(config: pytest.Config, log: object) -> "LoadFileScheduling":
    """Make xdist's scheduler that hands out units in the order of the collected tests.

    Where a worker dies, xdist's own would try the test that killed it again, and its next worker
    would wait for ever for a second unit.
    """
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only a parallel run has it

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def _reschedule(self, node: Any) -> None:
            """Give a worker units until it has more than two tests; if none is left, let it end."""
            if node.shutting_down:
                return
            while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
                self._assign_work_unit(node)
            if not self.workqueue:
                node.shutdown()

        def remove_node(self, node: Any) -> str | None:
            """Forget a worker; what it left goes to others, except for the test that killed it."""
            units = self.assigned_work[node]
            left = [(unit, test) for unit in units.values() for test in unit if not unit[test]]
            if left:
                left[0][0][left[0][1]] = True
            for name in [name for name, unit in units.items() if all(unit.values())]:
                del units[name]
            super().remove_node(node)
            return left[0][1] if left else None

    config.option.loadscopereorder = False
    return Scheduling(config, log)
