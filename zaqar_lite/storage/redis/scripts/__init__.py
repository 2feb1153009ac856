"""The Lua scripts, one for each operation, and how they are put together.

Each `.lua` file begins with a header of comments that is read here:

    -- key NAME: what it is                      a key, which the text calls by this name
    -- include: PART PART                       text of `parts/PART.lua` that comes before
    -- rarely: FUNCTION FUNCTION                 functions that most calls do not need
    -- refused when full                         the script adds what takes room
    -- registers nothing                         the script is never given the key `visits`

so that a script's keys are declared to Redis in one order that cannot differ from its text, and
shared steps are written once. `parts/keys.lua` has the keys of a queue. A script that registers
queues may be given one more key, `visits` (the index of what the sweep must visit), where that is
in the same server as the queue. Lua strings and numbers are all that scripts exchange with the
driver: a position is 8 bytes, an instant 6 bytes, both big-endian.

Every call of a script makes its keys and functions anew, and that took half the time of a claim of
one message. So:

- Functions that a script does not call are left out of it, and keys that it does not name.
- Those that are called `rarely`, and what only they call, are made when the first of them is.
- A key is written as `KEYS[n]` and a constant as its value. Each variable that functions use costs
  as much as a function.
- Functions are made within a function. There Lua finds a variable that they use by its number;
  a variable of the script itself it seeks among all others, once for each function that uses it.
- Commands get texts. Redis writes out each number that it is given, which takes as long as `HLEN`.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

_KEY = re.compile(r"^-- key (\w+):", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"^[ \t]*--.*\n|[ \t]+--.*$", re.MULTILINE)
_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (.+)\n", re.MULTILINE)
_LOCALS = re.compile(r"\b(?:local (?!function)|for |function ?\w*\()([\w, ]+)")
_NAME_OR_STRING = re.compile(r"'[^'\n]*'|(?<![.\w])\w+\b(?! = )")
"""A text, or a name that is neither a field nor assigned to."""
_STRING = re.compile(r"'[^'\n]*'")
_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_RARELY = re.compile(r"^-- rarely: (.+)$", re.MULTILINE)
_REFUSED_WHEN_FULL = "-- refused when full"
_REGISTERS_NOTHING = "-- registers nothing"
_PLACE = "\0"
"""Stands where the functions that are made late begin."""
_MAKE_LATE = """late = function(name)
{functions}
  local made = {{{table}}}
  late = function(wanted) return made[wanted] end
  return made[name]
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis runs it: its text, the digest it is called by, the kinds of its keys."""

    name: str
    text: bytes
    digest: bytes
    kinds: tuple[str, ...]
    may_register: bool
    """Whether it takes the index of the sweep's visits as one more key."""


@cache
def load(name: str) -> Script:
    """Read a script and the parts it includes, each once.

    Raises:
        ValueError: a variable hides a key, or a function is called before it can be made.
    """
    parts: list[str] = []
    _collect(f"{name}.lua", parts, set())
    body = "\n".join(parts)
    code = _with_constants(_without_unused(_COMMENT.sub("", body)))
    code = _within_function(_made_late(code, set(" ".join(_RARELY.findall(body)).split())))
    used = set(_NAME_OR_STRING.findall(code))
    kinds = tuple(kind for kind in dict.fromkeys(_KEY.findall(body)) if kind in used)
    if hidden := {name for names in _LOCALS.findall(code) for name in _words(names)} & {*kinds}:
        raise ValueError(f"{name}.lua has variables with the names of keys: {hidden}")
    may_register = "visits" in used - set(kinds) and _REGISTERS_NOTHING not in body
    named = (*kinds, "visits") if may_register else kinds
    values = {kind: f"KEYS[{i}]" for i, kind in enumerate(named, 1)}
    values.setdefault("visits", "nil")
    # A full Redis refuses new messages, and goes on handing out and deleting those it has.
    flags = "" if _REFUSED_WHEN_FULL in body else "flags=allow-oom"
    text = f"#!lua {flags}\n{_with_values(code, values)}".encode("ascii")
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    return Script(name, text, digest, kinds, may_register)


def _without_unused(code: str) -> str:
    """Leave out the functions that nothing calls, and then those that only they called."""
    names = Counter(_WORD.findall(_STRING.sub("", code)))
    kept = _FUNCTION.sub(lambda found: found[0] if names[found[1]] > 1 else "", code)
    return code if kept == code else _without_unused(kept)


def _made_late(code: str, entries: set[str]) -> str:
    """Let the functions that only `entries` lead to be made when the first of those is called.

    Raises:
        ValueError: the script calls a function before the last of these has its place.
    """
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(code)}
    wanted = _words(_FUNCTION.sub("", code))
    early: set[str] = set()
    while new := (wanted & functions.keys()) - entries - early:
        early |= new
        wanted = wanted.union(*(_words(functions[name]) for name in new))
    late = [name for name in functions if name not in early]
    if not late:
        return code
    before, _, _ = code.partition(functions[late[-1]])
    if too_early := _words(_FUNCTION.sub("", before)) & functions.keys():
        raise ValueError(f"called before {late[-1]}, which is made late: {too_early}")
    called = [name for name in late if name in wanted]
    made = _MAKE_LATE.format(
        functions="\n".join(functions[name] for name in late),
        table=", ".join(f"{name} = {name}" for name in called),
    )
    for name in late:
        code = code.replace(functions[name], _PLACE if name == late[-1] else "", 1)
    code = _with_values(code, {name: f"late('{name}')" for name in called})
    return code.replace(_PLACE, made, 1)


def _with_constants(code: str) -> str:
    """Write the values of constants where they are used, instead of variables."""
    values: dict[str, str] = {}
    for names, given in _CONSTANTS.findall(code):
        values |= dict(zip(names.split(", "), given.split(", "), strict=True))
    return _with_values(_CONSTANTS.sub("", code), values)


def _with_values(code: str, values: dict[str, str]) -> str:
    """Write values in place of names, but not of fields and within texts."""

    def value_of(found: re.Match[str]) -> str:
        return values.get(found[0], found[0])

    return _NAME_OR_STRING.sub(value_of, code)


def _words(code: str) -> set[str]:
    return set(_WORD.findall(_STRING.sub("", code)))


def _within_function(code: str) -> str:
    """Put a script's functions, and what follows the first of them, into a function."""
    first = _FUNCTION.search(code)
    if first is None:
        return code
    head, rest = code[: first.start()], code[first.start() :]
    return f"{head}local late\nreturn (function()\n{rest}\nend)()\n"


def _collect(path: str, parts: list[str], seen: set[str]) -> None:
    if path in seen:
        return
    seen.add(path)
    text = files(__name__).joinpath(path).read_text(encoding="ascii")
    for line in _INCLUDE.findall(text):
        for part in line.split():
            _collect(f"parts/{part}.lua", parts, seen)
    parts.append(text)
