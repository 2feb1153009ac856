"""What `python -m tests.mutants` plants, and that it knows which tests cover what."""

import ast
import json
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
