"""Access rules of Keystone's application credentials: which requests one may be used for."""

import re
from functools import lru_cache
from typing import NamedTuple

from zaqar_lite.domain.patterns import Pattern, Wildcard

_LONGEST_PATH = 2_048
_WILDCARDS = {"tree": Wildcard.MANY, "part": Wildcard.SEGMENT}
_TOKEN = re.compile(r"(?P<tree>\*\*+)|(?P<part>\*|{[^}]*})|(?P<text>.)", re.DOTALL)


class AccessRule(NamedTuple):
    """A method and a path; `*` and `{name}` stand for (part of) one segment, `**` for anything."""

    method: str
    path: str

    def admits(self, method: str, path: str) -> bool:
        """Tell whether it is for this request; for none whose path is very long."""
        is_long = len(path) > _LONGEST_PATH
        return method == self.method and not is_long and _compiled(self.path).matches(path)


@lru_cache(maxsize=1_000)
def _compiled(path: str) -> Pattern:
    """The pattern of a path, in which `{name}` is as `*`."""
    found = _TOKEN.finditer(path)
    return Pattern(_WILDCARDS.get(str(one.lastgroup)) or one[0] for one in found)
