"""The operations on Redis: one library of functions, which Redis is given once.

Redis keeps the functions as it keeps data: it writes them to its files and sends them to its
replicas. The names of library and functions end in a digest of the text, so that two versions of
this service can run beside each other. The files are parts of one text, in this order: each may use
what an earlier one defines. `call.lua` has what every operation begins with, and the queue's keys.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from zaqar_lite.domain.attempts import MAX_ATTEMPTS, MAX_ATTEMPTS_SIZE
from zaqar_lite.domain.settlements import PARKED_MARGIN_MS
from zaqar_lite.storage.redis.keys import FAMILIES
from zaqar_lite.storage.redis.layout import for_lua

LIBRARIES = "zaqar_lite_"
"""How the names of all versions' libraries begin."""
_FILES = ("call", "indexes", "posting", "letters", "claiming", "messages", "queues", "records")
_NAMES = "bit, ipairs, math, pairs, string, struct, table, tonumber, unpack"
_BUILT_IN = f"""local function built_in() return redis.call, {_NAMES} end
local call, {_NAMES}
local function take_built_in() call, {_NAMES} = built_in() end"""
"""Redis's own functions as variables of the library. Redis lets it see them only when an operation
runs, and Lua finds them there by two look-ups each: that took up to a quarter of an operation."""
_CONSTANTS = {
    "MOST_ATTEMPTS": MAX_ATTEMPTS,
    "MOST_BYTES": MAX_ATTEMPTS_SIZE,
    "MARGIN": PARKED_MARGIN_MS,
}
"""Bounds of a message's history, and how much longer than its wait a parked message lives (ms)."""


@cache
def library() -> bytes:
    """The text of the library, as FUNCTION LOAD takes it."""
    name = library_name()
    return f"#!lua name={name}\nlocal PREFIX = '{name}_'\n{_code()}".encode("ascii")


@cache
def library_name() -> str:
    """The name of this version's library."""
    return LIBRARIES + sha1(_code().encode(), usedforsecurity=False).hexdigest()[:12]


@cache
def function(operation: str) -> str:
    """The name of the function that does an operation."""
    return f"{library_name()}_{operation}"


@cache
def _code() -> str:
    folder = files(__name__)
    parts = [folder.joinpath(f"{name}.lua").read_text(encoding="ascii") for name in _FILES]
    constants = "\n".join(f"local {name} = {value}" for name, value in _CONSTANTS.items())
    return "\n".join((_BUILT_IN, constants, _names_of_keys(), for_lua(), *parts))


def _names_of_keys() -> str:
    """Variables for the keys, and for each family a function that sets them to those of a call."""
    kinds = dict.fromkeys(kind for family in FAMILIES.values() for kind in family)
    setters = "\n".join(
        f"  {name} = function(given) {', '.join(family)} = unpack(given) end,"
        for name, family in FAMILIES.items()
    )
    return f"local {', '.join(kinds)}\nlocal take_keys_of = {{\n{setters}\n}}"
