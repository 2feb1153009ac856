"""Which tests cover a change: those that were recorded entering its function.

`python -m tests.mutants --record` runs the tests once with `tests.mutants.recording`. A change in
no function (a constant, a field) is covered by the tests that enter the file, or else those that
enter the files that import it; one of the Lua library by the tests that run an operation of it.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.mutants.changes import Change

ROOT = Path(__file__).parents[2]
DRIVERS = "memory,opendata-slatedb,redis"
_ELSEWHERE = ("zaqar_lite/storage/mongodb/", "zaqar_lite/storage/swift/")
"""Who enters these starts a server that takes long to start, and repeats what others test."""
_NEAREST = 5
"""Files of tests that are tried first; the others follow when all of those pass."""
_FARTHER = 150
"""Tests of other files; where a function is entered by more, these are as many as notice it."""
_SLOW, _SLOWEST = 1.0, 8
"""Seconds of a test that is tried last, and how many of those are."""


@dataclass(frozen=True)
class Part:
    """A part of the package."""

    name: str
    folder: str
    suffixes: Sequence[str] = field(default=(".py",))


PARTS = (
    Part("domain", "zaqar_lite/domain"),
    Part("service", "zaqar_lite/service"),
    Part("api", "zaqar_lite/api"),
    Part("sql", "zaqar_lite/storage/sql"),
    Part("redis", "zaqar_lite/storage/redis", (".py", ".lua")),
    Part("opendata", "zaqar_lite/storage/opendata"),
)


@dataclass(frozen=True)
class Recording:
    """Tests that are recorded in one run of pytest."""

    name: str
    drivers: str
    paths: Sequence[str]

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments of pytest."""
        return (*self.paths, "-m", "not slow")


RECORDINGS = (
    Recording("rules", "memory", ("tests/domain", "tests/service", "tests/push")),
    Recording("sql", "memory", ("tests/contract", "tests/drivers/sql")),
    Recording(
        "api", "memory", ("tests/api", "tests/sqs", "tests/ui/test_page.py", "tests/test_docs.py")
    ),
    Recording("redis", "redis", ("tests/contract",)),
    Recording("opendata", "opendata-slatedb", ("tests/contract",)),
    Recording("redis-driver", "redis", ("tests/drivers/redis",)),
    Recording("opendata-driver", "opendata-slatedb", ("tests/drivers/opendata",)),
)


@dataclass(frozen=True)
class Test:
    """A test, the seconds that it took when it was recorded, and the functions that it enters."""

    name: str
    seconds: float
    functions: frozenset[str]

    @property
    def file(self) -> str:
        """The file that it is in."""
        return self.name.partition("::")[0]


class Covering:
    """The recorded tests."""

    def __init__(self, home: Path) -> None:
        self._tests: list[Test] = []
        for recording in RECORDINGS:
            path = home / f"{recording.name}.json"
            if not path.exists():
                continue
            recorded = json.loads(path.read_text(encoding="utf-8"))
            names = recorded["functions"]
            self._tests += [
                Test(test, seconds, frozenset(names[number] for number in numbers))
                for test, (seconds, numbers) in recorded["tests"].items()
                if not any(names[number].startswith(_ELSEWHERE) for number in numbers)
            ]

    def stages(self, change: Change) -> list[list[Test]]:
        """The tests that may notice a change: of the nearest files, of others, and slow ones."""
        found = self._covering(change)
        entering = {test.name for test in found}
        far: dict[str, tuple[float, float, str]] = {}
        for file in {test.file for test in found}:
            of_file = self._of_file[file]
            share = sum(test.name in entering for test in of_file) / len(of_file)
            entered = sum(len(test.functions) for test in of_file) / len(of_file)
            far[file] = (-share, entered, file)
        nearest = set(sorted(far, key=far.__getitem__)[:_NEAREST])
        ordered = _spread(found)
        quick = [test for test in ordered if test.seconds < _SLOW]
        stages = (
            [test for test in quick if test.file in nearest],
            [test for test in quick if test.file not in nearest][:_FARTHER],
            [test for test in ordered if test.seconds >= _SLOW][:_SLOWEST],
        )
        return [stage for stage in stages if stage]

    @cached_property
    def _of_file(self) -> dict[str, list[Test]]:
        files: dict[str, list[Test]] = {}
        for test in self._tests:
            files.setdefault(test.file, []).append(test)
        return files

    @cached_property
    def _files_entered(self) -> dict[str, frozenset[str]]:
        return {
            test.name: frozenset(name.partition(" ")[0] for name in test.functions)
            for test in self._tests
        }

    def _covering(self, change: Change) -> list[Test]:
        if change.path.endswith(".lua"):
            return [t for t in self._tests if any(f.startswith("operation ") for f in t.functions)]
        function = f"{change.path} {enclosing(change)}"
        found = [test for test in self._tests if function in test.functions]
        for files in ({change.path}, _importing(change.path)):
            found = found or [t for t in self._tests if self._files_entered[t.name] & files]
        return found


def _spread(tests: Sequence[Test]) -> list[Test]:
    """Order tests: the quickest of each file first, as each file looks at something else."""
    rank: dict[str, int] = {}
    ranked = []
    for test in sorted(tests, key=lambda test: (test.seconds, test.name)):
        rank[test.file] = rank.get(test.file, 0) + 1
        ranked.append((rank[test.file], test.seconds, test.name, test))
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:3])]


def enclosing(change: Change) -> str:
    """The qualified name of the innermost function around a change, or nothing."""
    source = (ROOT / change.path).read_bytes()
    names: list[str] = []
    innermost = ""
    node: ast.AST = ast.parse(source)
    while True:
        inner = next((n for n in _scopes(node) if _around(n, change.line)), None)
        if inner is None:
            return innermost
        names.append(inner.name)
        innermost = "" if isinstance(inner, ast.ClassDef) else ".".join(names)
        if not isinstance(inner, ast.ClassDef):
            names.append("<locals>")
        node = inner


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _scopes(node: ast.AST) -> Iterator[_Scope]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Scope):
            yield child
        else:
            yield from _scopes(child)


def _around(scope: _Scope, line: int) -> bool:
    first = min([scope.lineno, *(word.lineno for word in scope.decorator_list)])
    return first <= line <= (scope.end_lineno or first)


def _importing(path: str) -> set[str]:
    """The files of the package that import a module."""
    module = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
    parent, _, name = module.rpartition(".")
    wanted = re.compile(
        rf"from {re.escape(module)} import|from {re.escape(parent)} import .*\b{name}\b"
    )
    return {
        str(file.relative_to(ROOT))
        for file in (ROOT / "zaqar_lite").rglob("*.py")
        if wanted.search(file.read_text(encoding="utf-8"))
    }
