"""The Lua scripts, one for each operation, and how they are put together.

Each `.lua` file begins with a header of comments that is read here:

    -- key NAME: what it is                      a key; a local variable of that name
    -- include: PART PART                       text of `parts/PART.lua` that comes before
    -- refused when full                         the script adds what takes room

so that a script's keys are declared to Redis in one order that cannot differ from its text, and
shared steps are written once. `parts/keys.lua` has the keys of a queue. Functions that a script
does not call are left out of it, and keys that it does not name: Redis makes each of them anew at
every call. A script that registers queues may be given one more key, `visits` (the index of what
the sweep must visit), where that is in the same server as the queue. Lua strings and numbers are
all that scripts exchange with the driver: a position is 8 bytes, an instant 6 bytes, both
big-endian.
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
_STRING = re.compile(r"'[^'\n]*'")
_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_REFUSED_WHEN_FULL = "-- refused when full"


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
    """Read a script and the parts it includes, each once."""
    parts: list[str] = []
    _collect(f"{name}.lua", parts, set())
    body = "\n".join(parts)
    code = _without_unused(_COMMENT.sub("", body))
    used = set(_WORD.findall(_STRING.sub("", code)))
    kinds = tuple(kind for kind in dict.fromkeys(_KEY.findall(body)) if kind in used)
    may_register = "visits" in used - set(kinds)
    named = (*kinds, "visits") if may_register else kinds
    declared = "".join(f"local {kind} = KEYS[{i}]\n" for i, kind in enumerate(named, 1))
    # A full Redis refuses new messages, and goes on handing out and deleting those it has.
    flags = "" if _REFUSED_WHEN_FULL in body else "flags=allow-oom"
    text = f"#!lua {flags}\n{declared}{code}".encode("ascii")
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    return Script(name, text, digest, kinds, may_register)


def _without_unused(code: str) -> str:
    """Leave out the functions that nothing calls, and then those that only they called."""
    names = Counter(_WORD.findall(code))
    kept = _FUNCTION.sub(lambda found: found[0] if names[found[1]] > 1 else "", code)
    return code if kept == code else _without_unused(kept)


def _collect(path: str, parts: list[str], seen: set[str]) -> None:
    if path in seen:
        return
    seen.add(path)
    text = files(__name__).joinpath(path).read_text(encoding="ascii")
    for line in _INCLUDE.findall(text):
        for part in line.split():
            _collect(f"parts/{part}.lua", parts, seen)
    parts.append(text)
