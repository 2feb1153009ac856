"""`zaqar-lite completion`: completion for a shell, with the names of queues.

A shell asks for the names by `zaqar-lite queue names --line LINE -- PREFIX` while a word is being
typed, which `commands/queue_names.py` answers.
"""

import argparse
from collections.abc import Iterator

from zaqar_lite.commands.base_command import OK, Leaves

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
