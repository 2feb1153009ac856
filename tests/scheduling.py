"""Which files the workers of a parallel run take first, and which stay together on one worker.

pytest-xdist hands out whole files (`--dist loadfile`), by itself those with the most tests first.
Files with few but long tests would then come last, and one worker would still be busy with them
when the others have nothing left.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

LONGEST = (
    "tests/spark/",
    "tests/compat/test_tempest.py",
    "tests/contract/test_model.py",
    "tests/test_bounded.py",
    "tests/rabbitmq/",
    "tests/drivers/swift/",
    "tests/contract/",
    "tests/compat/",
    "tests/api/test_openapi.py",
    "tests/api/test_events.py",
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

TOGETHER = ("tests/spark/",)
"""Folders whose tests share what each worker would start for itself: a Spark session's JVM."""


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


def longest(reports: Iterable[pytest.TestReport], most: int = 10) -> list[tuple[str, float]]:
    """Sum the seconds of tests by file; return the `most` longest files, the longest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        seconds[file_of(report.nodeid)] += report.duration
    return sorted(seconds.items(), key=lambda entry: -entry[1])[:most]


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
    """Make xdist's scheduler that hands out units in the order of the collected tests."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only a parallel run has it

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
