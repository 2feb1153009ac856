"""The `zaqar-lite` command: a dispatcher that imports a part only when it is asked for.

The base install holds the SDK and the commands over it; a command whose extra is missing says
which one to install.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from zaqar_lite import __version__
from zaqar_lite.commands import completion
from zaqar_lite.commands.base_command import options_anywhere
from zaqar_lite.commands.parsers import Parser

if TYPE_CHECKING:
    import argparse


class Command(NamedTuple):
    """A command, the module whose `add_commands(subparsers)` adds it, and the extra it needs."""

    name: str
    module: str
    text: str
    extra: str | None = None


COMMANDS = (
    Command("serve", "zaqar_lite.serve", "run the server", "server"),
    Command("bench", "zaqar_lite.bench.commands", "measure a server"),
    *(
        Command(name, f"zaqar_lite.commands.{module}", text)
        for name, module, text in (
            ("queue", "queue", "make, change, list, count and empty queues"),
            ("message", "message", "post, list, edit, cancel and delete messages"),
            ("claim", "claim", "take messages for a while"),
            ("dlq", "dlq", "look at dead letters and move them back"),
            ("key", "administration", "make, list, disable and rotate keys"),
            ("data-key", "administration", "list and rotate the keys of encrypted queues"),
            ("quota", "administration", "show, set and reset quotas of projects"),
            ("pool", "administration", "make, list, change and delete pools of queues"),
            ("flavor", "administration", "make, list, change and delete flavors of queues"),
            ("schedule", "schedule", "post messages by the clock"),
            ("subscription", "subscription", "send a queue's messages to a URL"),
            ("topic", "topic", "post to many queues and receivers at once"),
            ("listen", "listen", "receive webhooks, to try things"),
            ("share", "queue", "print a pre-signed permission for a queue"),
            ("unshare", "queue", "revoke all permissions that were made for a queue"),
            ("health", "administration", "ask whether the server is up"),
            ("watch", "watch", "show queues' counts live, the worst first"),
            ("context", "context", "give servers names, and choose between them"),
            ("completion", "completion", "print completion for a shell"),
        )
    ),
    Command("delay", "zaqar_lite.rabbitmq.commands", "delays for RabbitMQ", "rabbitmq"),
    Command("store", "zaqar_lite.store", "look after the store", "server"),
)
USAGE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and answer its exit code."""
    _open_standard_streams()
    try:
        code = _run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `| head` is no error; without this the interpreter would complain while it ends.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _run(argv: Sequence[str] | None) -> int:
    """Find the command that the words name, and run it."""
    completes = "_ARGCOMPLETE" in os.environ  # a shell has run it for a word that is being typed
    typed = sys.argv[1:] if argv is None else list(argv)
    if typed[:1] == ["help"]:
        typed = [*typed[1:], "--help"]
    words = completion.words(options_last) if completes else options_last(typed)
    wanted = next((word for word in words if not word.startswith("-")), None)
    parser = Parser(
        prog="zaqar-lite", description="A message queue service that speaks Zaqar's v2 API."
    )
    parser.add_argument("--version", action="version", version=f"zaqar-lite {__version__}")
    subparsers = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    chosen = next((one for one in COMMANDS if one.name == wanted), None)
    if chosen is None:
        # The list of commands is quick: it imports none of them.
        for one in COMMANDS:
            subparsers.add_parser(one.name, help=one.text)
    else:
        try:
            import_module(chosen.module).add_commands(subparsers)
        except ModuleNotFoundError as exc:
            return _missing(chosen, exc)
    if completes:
        completion.complete(parser)
    arguments = parser.parse_args(words)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


NOUNS = frozenset(
    {
        *("queue", "message", "claim", "dlq", "key", "quota", "pool", "flavor", "context"),
        *("subscription", "topic", "schedule", "data-key"),
    }
)


def options_last(words: Sequence[str]) -> list[str]:
    """Move the options of connection and output that stand before a command to its end.

    So `zaqar-lite --json queue list` and `zaqar-lite queue --json list` are
    `zaqar-lite queue list --json`, and each command declares them once.
    """
    known = options_anywhere()
    command: list[str] = []
    moved: list[str] = []
    at = 0
    while at < len(words) and len(command) < (2 if command[:1] and command[0] in NOUNS else 1):
        word = words[at]
        name, equals, _ = word.partition("=")
        if known.get(name):
            moved += words[at : at + (1 if equals else 2)]
            at += 1 if equals else 2
            continue
        if word in known:
            moved.append(word)
        elif word.startswith("-"):
            break
        else:
            command.append(word)
        at += 1
    rest = list(words[at:])
    if not command:
        return rest
    end = rest.index("--") if "--" in rest else len(rest)
    return [*command, *rest[:end], *moved, *rest[end:]]


def _open_standard_streams() -> None:
    """Open those of standard input, output and error that the caller has closed (`serve >&-`).

    A socket or a store's file would get its number, and Python would have no stream for it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end


def _missing(command: Command, error: ModuleNotFoundError) -> int:
    if error.name is None or error.name.startswith("zaqar_lite"):
        raise error
    install = f"zaqar-lite[{command.extra}]" if command.extra else "zaqar-lite"
    print(
        f"zaqar-lite: this command needs the Python package {error.name!r}: "
        f"pip install '{install}'",
        file=sys.stderr,
    )
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
