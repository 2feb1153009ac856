"""What `python -m tests.mutants` plants, and that it knows which tests cover what."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.mutants.changes import find
from tests.mutants.covering import ROOT, Covering

PYTHON = '''"""A page of 7."""
LIMIT: int = 10

def page(items: "list[int] | None" = None, *, most=LIMIT):
    """Return at most 20."""
    log.info("%d", 1)
    wörter = "a < b"
    items.sort()
    if items is not None and not len(items) <= most + 1:
        return True
    return not (items or most)
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
        (9, "not", ""),
        (9, "<=", "<"),
        (9, "+", "-"),
        (9, "1", "2"),
        (10, "True", "False"),
        (11, "not", ""),
        (11, "or", "and"),
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


def test_tests_that_might_go_are_told_apart_from_those_that_stay(tmp_path: Path) -> None:
    path = "zaqar_lite/domain/clock.py"
    function = f"{path} Clock.now_ms"
    tests = {"tests/a.py::test_one": [0.1, [0]], "tests/b.py::test_two": [0.1, [0]]}
    recorded = {"functions": [function], "tests": tests}
    (tmp_path / "rules.json").write_text(json.dumps(recorded), encoding="utf-8")
    covering = Covering(tmp_path)
    changes = find(path, (ROOT / path).read_bytes())
    entered = [change for change in changes if covering.is_entered(change, ["tests/a.py"])]
    assert 0 < len(entered) < len(changes)
    assert not [change for change in changes if covering.is_entered(change, ["tests/c.py"])]
    (stage,) = covering.stages(entered[0], without=["tests/a.py"])
    assert [test.name for test in stage] == ["tests/b.py::test_two"]
