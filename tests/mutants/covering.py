"""Which tests cover a change: those that were recorded entering its function.

`python -m tests.mutants --record` runs the tests once with `tests.mutants.recording`. A change in
no function (a constant, a field) is covered by the tests that enter a function which uses its name,
anywhere in the package; one of the Lua library by the tests that run an operation of it.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tests.mutants.changes import Change

ROOT = Path(__file__).parents[2]
DRIVERS = "memory,opendata-slatedb,redis"
_ELSEWHERE = ("zaqar_lite/storage/mongodb/", "zaqar_lite/storage/swift/")
"""Who enters these starts a server that takes long to start, and repeats what others test."""
_NEAREST = 5
"""Files of tests that are tried first: those named like the module, or that enter little else."""
_FARTHER = 600
"""Tests of other files; where a function is entered by more, these are as many as notice it."""
_MANY = 50
"""Functions that use a name: beyond these, it is taken for a word that others use too."""
_SLOW, _SLOWEST = 2.0, 12
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
        "api",
        "memory",
        (
            "tests/api",
            "tests/sqs",
            "tests/ui/test_page.py",
            "tests/test_docs.py",
            "tests/test_settings.py",
        ),
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

    def is_of(self, names: Sequence[str]) -> bool:
        """Whether it is one of some tests, or in one of some files or folders."""
        return self.name.startswith(tuple(names))


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

    def stages(self, change: Change, without: Sequence[str] = ()) -> list[list[Test]]:
        """The tests that may notice a change: of the nearest files, of others, and slow ones.

        Those of `without` are left out.
        """
        found = [test for test in self.covering(change) if not test.is_of(without)]
        entering = {test.name for test in found}
        # What a server runs in a process of its own is not recorded.
        found += [
            test
            for test in self._tests
            if test.name not in entering and not test.is_of(without) and _is_like(test, change)
        ]
        far: dict[str, tuple[bool, float, float, str]] = {}
        for file in {test.file for test in found}:
            of_file = self._of_file[file]
            share = sum(test.name in entering for test in of_file) / len(of_file)
            entered = sum(len(test.functions) for test in of_file) / len(of_file)
            far[file] = (Path(change.path).stem not in file, -share, entered, file)
        nearest = set(sorted(far, key=far.__getitem__)[:_NEAREST])
        ordered = _spread(found)
        quick = [test for test in ordered if test.seconds < _SLOW]
        slow = [test for test in ordered if test.seconds >= _SLOW]
        stages = (
            [test for test in quick if test.file in nearest],
            [test for test in quick if test.file not in nearest][:_FARTHER],
            sorted(slow, key=lambda test: test.file not in nearest)[:_SLOWEST],
        )
        return [stage for stage in stages if stage]

    def is_entered(self, change: Change, names: Sequence[str]) -> bool:
        """Whether one of some tests enters the function that a change is in."""
        entered = self._entered(tuple(names))
        if change.path.endswith(".lua"):
            return any(function.startswith("operation ") for function in entered)
        return f"{change.path} {enclosing(change)}" in entered

    @cache  # noqa: B019 - one for each command
    def _entered(self, names: Sequence[str]) -> set[str]:
        return {f for test in self._tests if test.is_of(names) for f in test.functions}

    @cached_property
    def _of_file(self) -> dict[str, list[Test]]:
        files: dict[str, list[Test]] = {}
        for test in self._tests:
            files.setdefault(test.file, []).append(test)
        return files

    def covering(self, change: Change) -> list[Test]:
        """All tests that were recorded entering what a change is in, or what uses it."""
        if change.path.endswith(".lua"):
            return [t for t in self._tests if any(f.startswith("operation ") for f in t.functions)]
        scope = enclosing(change)
        functions = {f"{change.path} {scope}"} if scope else using(change)
        found = [test for test in self._tests if functions & test.functions]
        return found or [
            test
            for test in self._tests
            if any(name.startswith(f"{change.path} ") for name in test.functions)
        ]


def _is_like(test: Test, change: Change) -> bool:
    """Whether a file of tests, or its folder, is named like a module, or its package."""
    path = Path(change.path)
    names = {path.stem, *path.parts[2:-1]} - {"__init__", "api", "service", "storage", "v2"}
    return bool(names & {*Path(test.file.replace("test_", "")).with_suffix("").parts})


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
    names: list[str] = []
    innermost = ""
    node: ast.AST = _parsed(change.path)
    while True:
        inner = next((n for n in _scopes(node) if _around(n, change.line)), None)
        if inner is None:
            return innermost
        names.append(inner.name)
        innermost = "" if isinstance(inner, ast.ClassDef) else ".".join(names)
        if not isinstance(inner, ast.ClassDef):
            names.append("<locals>")
        node = inner


@cache
def _parsed(path: str) -> ast.Module:
    """The source of a file, before a change of it: where scopes are, a change leaves as it is."""
    return ast.parse((ROOT / path).read_bytes())


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


def using(change: Change) -> set[str]:
    """The functions that use what is bound around a change, or what is made of that.

    Of a field whose name many use, those that use its class.
    """
    users, made_of = _uses()
    names: set[str] = set()
    for statement, owner in _outside(_parsed(change.path), change.path):
        if statement.lineno <= change.line <= (statement.end_lineno or 0):
            names = _names([statement], change.path, ast.Store)
            if owner and not 0 < sum(len(users[name]) for name in names) < _MANY:
                names = {owner}
    found: set[str] = set()
    seen: set[str] = set()
    while names:
        more = {user for name in names for user in users[name]}
        if found and len(found | more) > _MANY:
            break
        found |= more
        seen |= names
        names = {made for name in names for made in made_of[name]} - seen
    return found


@cache
def _uses() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The functions that use each name, and the constants and classes that are made of it."""
    users, made_of = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for file in (ROOT / "zaqar_lite").rglob("*.py"):
        path, source = str(file.relative_to(ROOT)), ast.parse(file.read_bytes())
        for function, node in _functions(source):
            owner = _name(function.partition(".")[0], path)
            for name in {owner, *_names([node], path, ast.Load)}:
                users[name].add(f"{path} {function}")
        for statement, owner in _outside(source, path):
            parts: list[ast.AST] = [statement]
            if isinstance(statement, ast.ClassDef):
                parts = [*statement.bases, *statement.keywords]
            for name in _names(parts, path, ast.Load):
                made_of[name] |= {owner} if owner else _names(parts, path, ast.Store)
    return users, made_of


def _functions(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for scope in _scopes(node):
        if isinstance(scope, ast.ClassDef):
            yield from ((f"{scope.name}.{name}", inner) for name, inner in _functions(scope))
        else:
            yield scope.name, scope


def _outside(node: ast.AST, path: str, owner: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """The classes and assignments in no function, with the class that they are or belong to."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield child, _name(child.name, path)
            yield from _outside(child, path, _name(child.name, path))
        elif isinstance(child, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield child, owner
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _outside(child, path, owner)


def _names(nodes: Sequence[ast.AST], path: str, kind: type[ast.Load | ast.Store]) -> set[str]:
    """The names that are read or bound."""
    return {
        _name(part.id if isinstance(part, ast.Name) else part.attr, path)
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, kind)
    }


def _name(name: str, path: str) -> str:
    """A name; a private one is told apart from those of other files."""
    return f"{path} {name}" if name.startswith("_") else name
