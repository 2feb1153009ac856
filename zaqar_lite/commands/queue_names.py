"""The names of queues for a word that is being completed: `zaqar-lite queue names --line LINE`.

A shell runs this at every press of the Tab key, with the line that was typed so far.
"""

import shlex
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from re import compile as pattern

from zaqar_lite.commands import sdk
from zaqar_lite.commands.base_command import connect, name_of, options_anywhere

MOST = 1_000
"""How many names are printed."""
_SECONDS = 2.0
_PLAIN = pattern(r"[\w.:@%+-]+")
"""Names that no shell reads as anything else: a completed word becomes part of a command."""


def complete(words: Sequence[str]) -> int:
    """Print names; `words` are LINE, `--` and the prefix.

    Whatever goes wrong prints nothing: a shell has no place for an error while a word is typed.
    """
    prefix = words[-1] if len(words) > 1 and words[-1] != "--" else ""
    until = time.monotonic() + _SECONDS
    with suppress(Exception):
        given = _given(words[0] if words else "")
        arguments = Namespace(**{**given, "attempts": 1, "timeout": _SECONDS})
        with connect(sdk.Client, arguments) as client:
            found = (queue.name for queue in client.list_queues(name=prefix or None))
            in_time = takewhile(lambda _: time.monotonic() < until, found)
            plain = (one for one in in_time if one.startswith(prefix) and _PLAIN.fullmatch(one))
            for name in islice(plain, MOST):
                print(name)
    return 0


def _given(line: str) -> Mapping[str, str]:
    """Read the options of connection from the line; one with an open quote has none yet."""
    try:
        words = shlex.split(line)
    except ValueError:
        return {}
    given, known = dict[str, str](), options_anywhere()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if known.get(name):
            given[name_of(name)] = value if equals else following
    return given
