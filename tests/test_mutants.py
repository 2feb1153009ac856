"""What `python -m tests.mutants` plants, and that it knows which tests cover what."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.mutants.__main__ import candidates, sample
from tests.mutants.changes import Change, find
from tests.mutants.covering import PARTS, RECORDINGS, ROOT, Covering, enclosing

PYTHON = '''"""A page of 7."""
LIMIT: int = 10

def page(items: "list[int] | None" = None, *, most=LIMIT):
    """Return at most 20."""
    log.info("%d", 1)
    wörter = "a < b"
    items.sort()
    if items is not None and not len(items) <= most + 1:
        return True
'''.encode()
LUA = b"""-- Not 5 < 6.
local name = 'a < b'
if found >= 10 and redis.call('ZCARD', key2) == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('SET', name,
end
"""

WORK = """
from pathlib import Path
from tests.mutants.changes import find
from tests.mutants.running import Warm

source = Path("one.py").absolute()

def work(session):
    before = source.read_bytes()
    for change in find(source.name, before):
        source.write_bytes(change.planted(before))
        names = ["test_one.py::test_a", "test_one.py::test_b"]
        print("told", change.old, session.failing(names, change, 60), flush=True)

Warm(source.parent, source.parent / "log", work).run(["test_one.py"])
"""


def test_of_python_it_changes_what_runs_and_nothing_else() -> None:
    changes = find("x.py", PYTHON)
    assert [(change.line, change.old, change.new) for change in changes] == [
        (2, "10", "11"),
        (8, "items.sort()", "pass"),
        (9, "is not", "is"),
        (9, "and", "or"),
        (9, "not ", ""),
        (9, "<=", "<"),
        (9, "+", "-"),
        (9, "1", "2"),
        (10, "True", "False"),
    ]
    for change in changes:
        ast.parse(change.planted(PYTHON))


def test_of_lua_it_changes_no_comment_and_no_text() -> None:
    changes = find("x.lua", LUA)
    assert [(change.line, change.old, change.new) for change in changes] == [
        (3, ">=", ">"),
        (3, "10", "11"),
        (3, "and", "or"),
        (3, "==", "~="),
        (3, "0", "1"),
        (4, "redis.call('DEL', KEYS[1])", ""),
        (4, "1", "2"),
    ]
    assert b"    \n" in changes[5].planted(LUA)


def test_every_part_has_changes_and_every_recording_has_tests() -> None:
    for part in PARTS:
        assert candidates(part)
    for recording in RECORDINGS:
        assert all((ROOT / path).exists() for path in recording.paths)


def test_a_seed_chooses_the_same_changes_whatever_else_changes() -> None:
    before = find("x.py", PYTHON)
    after = find("x.py", b"MORE = not 1 + 2\n" + PYTHON)
    chosen = [(change.text, change.old) for change in sample(before, 7, 4)]
    kept = [(change.text, change.old) for change in sample(after, 7, len(after))]
    assert [change for change in kept if change in chosen] == chosen
    assert [(change.text, change.old) for change in sample(before, 8, 4)] != chosen


def test_a_change_is_covered_by_the_tests_that_enter_its_function(tmp_path: Path) -> None:
    path = "zaqar_lite/domain/quotas.py"
    changes = find(path, (ROOT / path).read_bytes())
    function = next(name for change in changes if (name := enclosing(change)))
    others = {"functions": ["zaqar_lite/domain/ids.py f", f"{path} {function}", f"{path} other"]}
    tests = {"a.py::far": (1, [0]), "a.py::near": (2, [0, 1]), "b.py::beside": (1, [2])}
    (tmp_path / "rules.json").write_text(json.dumps({**others, "tests": tests}))
    covering = Covering(tmp_path)

    def names(change: Change) -> list[str]:
        return [test.name for stage in covering.stages(change) for test in stage]

    inside = next(change for change in changes if enclosing(change) == function)
    assert names(inside) == ["a.py::near"]
    outside = replace(inside, line=1)
    assert sorted(names(outside)) == ["a.py::near", "b.py::beside"]


def test_the_lua_library_is_covered_by_what_runs_an_operation(tmp_path: Path) -> None:
    recorded = {
        "functions": ["operation claim", "a.py near"],
        "tests": {"a::1": (1, [0]), "b::2": (1, [1])},
    }
    (tmp_path / "redis.json").write_text(json.dumps(recorded))
    path = "zaqar_lite/storage/redis/scripts/indexes.lua"
    change = find(path, (ROOT / path).read_bytes())[0]
    stages = Covering(tmp_path).stages(change)
    assert [test.name for stage in stages for test in stage] == ["a::1"]


def test_a_run_names_the_test_that_fails_in_a_fork_and_apart(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("LIMIT = 2\n\ndef small(n):\n    return n < LIMIT\n")
    (tmp_path / "conftest.py").write_text(
        "import gc\ndef pytest_collection_finish(): gc.freeze()\n"
    )
    (tmp_path / "test_one.py").write_text(
        "from one import small\ndef test_a(): assert small(1)\ndef test_b(): assert not small(2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("told")]
    assert told == ["told 2 test_one.py::test_b", "told < test_one.py::test_b"]
