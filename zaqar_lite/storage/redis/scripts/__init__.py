"""The Lua scripts, one for each operation, and how they are put together.

Each `.lua` file begins with a header of comments that is read here:

    -- key NAME: what it is, who deletes it     a key of the queue; a local variable of that name
    -- include: PART PART                       text of `parts/PART.lua` that comes before
    -- refused when full                         the script adds what takes room

so that a script's keys are declared to Redis in one order that cannot differ from its text, and
shared steps are written once. A script that has the key `state` may be given one more, `visits`
(the index of what the sweep must visit), where that is in the same server as the queue. Lua strings
and numbers are all that scripts exchange with the driver: a position is 8 bytes, an instant 6
bytes, both big-endian.
"""

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

_KEY = re.compile(r"^-- key (\w+):", re.MULTILINE)
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
    kinds = tuple(dict.fromkeys(_KEY.findall(body)))
    declared = "".join(f"local {kind} = KEYS[{i}]\n" for i, kind in enumerate(kinds, 1))
    may_register = "state" in kinds
    if may_register:
        declared += f"local visits = KEYS[{len(kinds) + 1}]\n"
    code = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
    # A full Redis refuses new messages, and goes on handing out and deleting those it has.
    flags = "" if _REFUSED_WHEN_FULL in body else "flags=allow-oom"
    text = f"#!lua {flags}\n{declared}{code}".encode("ascii")
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    return Script(name, text, digest, kinds, may_register)


def _collect(path: str, parts: list[str], seen: set[str]) -> None:
    if path in seen:
        return
    seen.add(path)
    text = files(__name__).joinpath(path).read_text(encoding="ascii")
    for line in _INCLUDE.findall(text):
        for part in line.split():
            _collect(f"parts/{part}.lua", parts, seen)
    parts.append(text)
