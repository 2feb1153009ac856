"""Access rules of Keystone's application credentials: which requests one may be used for."""

import re
from functools import lru_cache
from typing import NamedTuple

_LONGEST_PATH = 2_048
_TOKEN = re.compile(r"(?P<tree>\*\*+)|(?P<part>\*|{[^}]*})|(?P<text>.)", re.DOTALL)


class AccessRule(NamedTuple):
    """A method and a path; `*` and `{name}` stand for (part of) one segment, `**` for anything."""

    method: str
    path: str

    def admits(self, method: str, path: str) -> bool:
        """Tell whether it is for this request; for none whose path is very long."""
        return method == self.method and len(path) <= _LONGEST_PATH and _matches(self.path, path)


class _Pattern(NamedTuple):
    """A pattern as sets of places, one bit each: where a character, a part, or a tree may come."""

    texts: dict[str, int]
    parts: int
    trees: int
    end: int


@lru_cache(maxsize=1_000)
def _compiled(pattern: str) -> _Pattern:
    texts: dict[str, int] = {}
    parts = trees = 0
    bit = 1
    for found in _TOKEN.finditer(pattern):
        if found["tree"]:
            trees |= bit
        elif found["part"]:
            parts |= bit
        else:
            texts[found["text"]] = texts.get(found["text"], 0) | bit
        bit <<= 1
    return _Pattern(texts, parts, trees, bit)


def _matches(pattern: str, path: str) -> bool:
    """Follow all ways through the pattern at once: users write them, and backtracking can explode.

    A place stands for what is to come, so `places` holds the end when nothing need come any more.
    """
    texts, parts, trees, end = _compiled(pattern)
    places = 1 | ((1 & trees) << 1)
    for character in path:
        following = ((places & texts.get(character, 0)) << 1) | (places & trees)
        if character != "/":
            within = places & parts
            following |= within | (within << 1)
        places = following | ((following & trees) << 1)
        if not places:
            return False
    return bool(places & end)
