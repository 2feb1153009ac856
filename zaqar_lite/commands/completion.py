"""`zaqar-lite completion`: completion for a shell, with the names of queues.

The shell runs `zaqar-lite` at every press of the Tab key, and `complete` answers in place of a
command.
"""

import argparse
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from re import compile as pattern

from zaqar_lite.commands import sdk
from zaqar_lite.commands.base_command import OK, Leaves, connect

MOST = 1_000
"""How many names are printed."""
_SECONDS = 2.0
_PLAIN = pattern(r"[\w.:@%+-]+")
"""Names that no shell reads as anything else: a completed word becomes part of a command."""
SHELLS = ("bash", "zsh", "fish", "tcsh")


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
    """Print it."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - nobody else needs it

    print(shellcode(["zaqar-lite"], shell=arguments.shell))
    return OK


def words(in_order: Callable[[Sequence[str]], Sequence[str]]) -> Sequence[str]:
    """Return the words of the line that a shell completes, as its command takes them.

    The line is written anew in that order, for `complete`; the word at the cursor stays its end.
    """
    from argcomplete.lexers import split_line  # noqa: PLC0415 - nobody else needs it

    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    quote, prefix, _, typed, _ = split_line(line, point)
    ordered = in_order(typed[1:])
    line = f"{shlex.join(['zaqar-lite', *ordered])} {quote}{prefix}"
    os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line.encode())))
    return [*ordered, prefix]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and end the process."""
    import argcomplete  # noqa: PLC0415 - nobody else needs it

    for action in _actions(parser):
        if "QUEUE" in {action.metavar, action.dest.upper()}:
            action.completer = _queues  # type: ignore[attr-defined] # where argcomplete looks
    argcomplete.autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser and its commands take."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _actions(one)
        else:
            yield action


def _queues(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterator[str]:
    """Yield names; whatever goes wrong yields none, for a shell has no place for an error here."""
    until = time.monotonic() + _SECONDS
    with suppress(Exception):
        given = {**vars(parsed_args), "attempts": 1, "timeout": _SECONDS}
        with connect(sdk.Client, argparse.Namespace(**given)) as client:
            found = (queue.name for queue in client.list_queues(name=prefix or None))
            in_time = takewhile(lambda _: time.monotonic() < until, found)
            plain = (one for one in in_time if one.startswith(prefix) and _PLAIN.fullmatch(one))
            yield from islice(plain, MOST)
