"""`zaqar-lite completion`: completion for a shell, with the names of queues.

A shell asks for the names by `zaqar-lite queue names --line LINE -- PREFIX` at every press of the
Tab key, with the line that was typed so far; `complete` answers.
"""

import argparse
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from re import compile as pattern

from zaqar_lite.commands import sdk
from zaqar_lite.commands.base_command import OK, Leaves, connect, name_of, options_anywhere

MOST = 1_000
"""How many names are printed."""
_SECONDS = 2.0
_PLAIN = pattern(r"[\w.:@%+-]+")
"""Names that no shell reads as anything else: a completed word becomes part of a command."""

SHELLS = ("bash", "zsh", "fish", "tcsh")

# What each shell runs for a queue's name. The line that was typed so far says which server.
_ASK = "zaqar-lite queue names --line"
_QUEUES: dict[str, str | dict[str, str]] = {
    "bash": "_zaqar_lite_queues",
    "zsh": "_zaqar_lite_queues",
    "fish": f"({_ASK} (commandline -cp) -- (commandline -ct) 2>/dev/null)",
    "tcsh": "",
    "preamble": {
        "bash": f'_zaqar_lite_queues() {{ {_ASK} "$COMP_LINE" -- "$1" 2>/dev/null; }}',
        "zsh": "\n".join(
            [
                "_zaqar_lite_queues() {",
                "  local -a names",
                f'  names=(${{(f)"$({_ASK} "$BUFFER" -- "$PREFIX" 2>/dev/null)"}})',
                "  compadd -a names",
                "}",
            ]
        ),
    },
}


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print completion for a shell",
        description='Print completion for a shell: eval "$(zaqar-lite completion bash)", or '
        "zaqar-lite completion fish | source.",
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it; `arguments.parser` is the whole command's parser."""
    import shtab  # noqa: PLC0415 - nobody else needs it

    for action in _actions(arguments.parser):
        if "QUEUE" in {action.metavar, action.dest.upper()}:
            action.complete = _QUEUES  # type: ignore[attr-defined] # where shtab looks for it
    print(shtab.complete(arguments.parser, arguments.shell))
    return OK


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser and its commands take."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _actions(one)
        else:
            yield action


def complete(words: Sequence[str]) -> int:
    """Print names; `words` are LINE, `--` and the prefix.

    Whatever goes wrong prints nothing: a shell has no place for an error while a word is typed.
    """
    prefix = words[-1] if len(words) > 1 and words[-1] != "--" else ""
    until = time.monotonic() + _SECONDS
    with suppress(Exception):
        given = _given(words[0] if words else "")
        arguments = argparse.Namespace(**{**given, "attempts": 1, "timeout": _SECONDS})
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
