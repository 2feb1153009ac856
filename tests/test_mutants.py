"""What `python -m tests.mutants` plants, and that it knows which tests cover what."""

import ast
from pathlib import Path

from tests.mutants.changes import find
from tests.mutants.covering import PARTS

ROOT = Path(__file__).parents[1]

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


def test_every_part_has_changes_and_tests_that_are_there() -> None:
    for part in PARTS:
        files = [path for name in part.folders for path in (ROOT / name).rglob("*")]
        assert any(find(path.name, path.read_bytes()) for path in files if path.suffix == ".py")
        for stage in part.stages:
            named = [word for word in stage.arguments if word.startswith("tests/")]
            assert named
            assert all((ROOT / name).exists() for name in named)
