"""`zaqar-lite completion`: completion for a shell."""

import argparse

from zaqar_lite.commands.running import OK, Leaves

SHELLS = ("bash", "zsh", "tcsh")


def add_command(subparsers: Leaves) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print completion for a shell",
        description='Print completion for a shell: eval "$(zaqar-lite completion bash)".',
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it; `arguments.parser` is the whole command's parser."""
    import shtab  # noqa: PLC0415 - nobody else needs it

    print(shtab.complete(arguments.parser, arguments.shell))
    return OK
