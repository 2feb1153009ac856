"""`zaqar-lite queue names`: the names of queues, one a line, for scripts and for completion."""

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import Leaves, add_connection, add_leaf, run

if TYPE_CHECKING:
    from zaqar_lite.client import Client

MOST_COMPLETED = 1_000
_SECONDS = 2
_PLAIN = re.compile(r"[\w.:@%+-]+")
"""Names that no shell reads as anything else: a completed word becomes part of a command."""


def add_verb(verbs: Leaves) -> None:
    """Declare the verb."""
    parser = add_leaf(verbs, "names", names, "print the names of queues, one a line")
    parser.add_argument("prefix", nargs="?", default="", help="only names that begin with this")
    # The command line that is being completed: its --url, --context, ... say which server.
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.set_defaults(run=lambda arguments: run(names, _as_typed(arguments)))


def names(client: "Client", arguments: argparse.Namespace, _output: Output) -> None:
    """Print names; at most 1,000, and none that a shell would read, where a word is completed."""
    found = (queue.name for queue in client.list_queues(name=arguments.prefix or None))
    wanted: Iterable[str] = (name for name in found if name.startswith(arguments.prefix))
    if arguments.line is not None:
        wanted = islice(filter(_PLAIN.fullmatch, wanted), MOST_COMPLETED)
    for name in wanted:
        print(name)


def _as_typed(arguments: argparse.Namespace) -> argparse.Namespace:
    """Take the options of connection from the line that is being completed; never wait long."""
    if arguments.line is None:
        return arguments
    connection = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_connection(connection)
    # Words that are not complete yet are no options: then the environment says which server.
    with contextlib.suppress(ValueError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        connection.parse_known_args(shlex.split(arguments.line), arguments)
    arguments.attempts, arguments.timeout = 1, _SECONDS
    return arguments
