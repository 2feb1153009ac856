"""What all commands share: options of connection and output, and exit codes.

0   done
1   refused, or only partly done
2   wrong usage
3   not found: no such queue, message or claim
4   unavailable: no answer, overloaded, or a failure of the server
130 interrupted
141 the reader of the output has closed it
"""

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import Any, Self, TypeAlias, TypeVar

from zaqar_lite.commands import contexts, sdk
from zaqar_lite.commands.argument_types import (
    Pairs,
    UsageError,
    duration,
    flag,
    number,
    pair,
    seconds_above_zero,
)
from zaqar_lite.commands.output import Output, Retrying, as_row, printable
from zaqar_lite.commands.parsers import SHARED, Leaf

OK, FAILED, USAGE, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3, 4

_CONNECTION = (
    ("--context", "NAME", "a server of `zaqar-lite context` (ZAQAR_LITE_CONTEXT)"),
    ("--url", None, "the server (ZAQAR_LITE_URL, else http://127.0.0.1:8888)"),
    ("--project", None, "the project (ZAQAR_LITE_PROJECT, else default)"),
    ("--client-id", "UUID", "who is asking (ZAQAR_LITE_CLIENT_ID, else a new one)"),
    (
        "--access-key",
        "KEY",
        "a key of the server (ZAQAR_LITE_KEY, which other users of this machine can't see)",
    ),
    ("--ca-file", "FILE", "who signed the server's certificate (ZAQAR_LITE_CA_FILE)"),
    ("--client-cert", "FILE", "certificate and key to show the server, in one file"),
    (
        "--os-cloud",
        "NAME",
        "log in as clouds.yaml says (ZAQAR_LITE_OS_CLOUD; OS_CLOUD where no URL is given)",
    ),
    ("--signed", "FILE", "use a permission that `share` has printed (ZAQAR_LITE_SIGNED)"),
)

Ask = Callable[["sdk.Client", argparse.Namespace], Any] | str
"""What a command asks the client: a function, or the name of a method.

A method takes the words of the command in their order, and its other arguments by their names.
"""
Handler = Callable[["sdk.Client", argparse.Namespace, Output], int | None]
WhyEmpty = Callable[[argparse.Namespace], str]
S = TypeVar("S", "sdk.Client", "sdk.AsyncClient")
Leaves: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

POST_OPTIONS = ("ttl", "delay", "deliver_at", "headers", "group")
"""Options that apply to all messages of a post."""
PARTS = {
    "key": "`serve --auth keys`",
    "quota": "`serve --admin-mode`",
    **dict.fromkeys(("pool", "flavor"), "`serve --pooling --admin-mode`"),
    "data-key": "the setting encryption_key_file",
}
"""Commands that need a server with this option or setting."""


class Verbs:
    """Where commands that talk to the server are declared: the verbs of a noun, or the root."""

    def __init__(self, subparsers: Leaves, noun: str = "") -> None:
        self.subparsers = subparsers
        self._noun = noun

    @classmethod
    def of(cls, subparsers: Leaves, name: str, text: str) -> Self:
        """Declare a noun."""
        parser = subparsers.add_parser(name, help=text, description=text)
        verbs: Leaves = parser.add_subparsers(
            title="verbs", dest=f"{name}_verb", metavar="VERB", required=True, parser_class=Leaf
        )
        return cls(verbs, name)

    def leaf(self, name: str, handler: Handler, text: str, *words: str) -> argparse.ArgumentParser:
        """Declare a command, and the words that it needs, in their order."""
        parser = self.subparsers.add_parser(name, help=text, description=text)
        parser.set_defaults(run=lambda arguments: run(handler, arguments))
        for word in words:
            parser.add_argument(word, type=_topic if word == "topic" else str)
        add_connection(parser)
        return parser

    def call(
        self, name: str, call: Ask, text: str, *words: str, prints: str = ""
    ) -> argparse.ArgumentParser:
        """Declare a command that prints what one call of the client returns, if it is not None.

        `prints` is the name of what is returned, where that has no fields.
        """

        def handler(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
            result = _ask(client, call, arguments, words, parser)
            if result is not None:
                output.record({prints: result} if prints else as_row(result))

        parser = self.leaf(name, handler, text, *words)
        return parser

    def delete(
        self, text: str, find: Ask, delete: Ask, *words: str, name: str = "delete"
    ) -> argparse.ArgumentParser:
        """Declare a verb that deletes; `find` raises NotFound if there is nothing to delete.

        The server's answer to a delete does not say whether there was something. Who may delete
        and not look deletes without looking.
        """

        def call(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
            with suppress(sdk.Forbidden):
                _ask(client, find, given, words)
            _ask(client, delete, given, words)
            return {word: getattr(given, word) for word in words} | {"deleted": True}

        return self.call(name, call, text, *words)

    def list(
        self,
        name: str,
        call: Ask,
        text: str,
        *words: str,
        columns: Sequence[str],
        empty: str | WhyEmpty = "No {noun}s.",
    ) -> argparse.ArgumentParser:
        """Declare a command that lists what one call of the client yields, at most `--limit` of it.

        `empty` is what a terminal shows if it yields nothing; `{queue}` stands for the word
        `queue`, and `{noun}` for the noun. One without a full stop is about the messages of the
        queue, and is shown with the reason (`why_empty`).
        """

        def handler(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
            def why() -> str:
                given = {"noun": self._noun, **vars(arguments)}
                text = empty.format(**given) if isinstance(empty, str) else empty(arguments)
                return text if text.endswith(".") else why_empty(client, arguments, text)

            found = _ask(client, call, arguments, words, parser)
            rows = map(as_row, islice(found, vars(arguments).get("limit")))
            output.rows(rows, columns, empty=why)

        parser = self.leaf(name, handler, text, *words)
        return parser


def _topic(name: str) -> "sdk.Topic":
    return sdk.Topic(name)  # imports the SDK, which nobody needs for a list of commands


def _ask(
    client: "sdk.Client",
    call: Ask,
    given: argparse.Namespace,
    words: Sequence[str],
    parser: argparse.ArgumentParser | None = None,
) -> Any:  # noqa: ANN401 - what the client returns
    """Call a function, or a method with a command's words and the options that were given."""
    if not isinstance(call, str):
        return call(client, given)
    actions = () if parser is None else parser._actions
    shared = {*words, "limit", "help", *(one.dest for one in actions if hasattr(one, SHARED))}
    own = [(one, getattr(given, one.dest)) for one in actions if one.dest not in shared]
    # A word may be JSON's null, and is always given.
    options = {one.dest: it for one, it in own if it is not one.default or one.required}
    return attrgetter(call)(client)(*(getattr(given, word) for word in words), **options)


def add_headers(parser: argparse.ArgumentParser) -> None:
    """Declare the headers of the messages that a command posts."""
    text = "a header of the message; may be repeated"
    parser.add_argument(
        "--header", dest="headers", action=Pairs, type=pair, metavar="KEY=VALUE", help=text
    )


def add_place(parser: "argparse._ActionsContainer") -> None:
    """Declare where the server is, and who asks: what `connect` reads."""
    for option, metavar, text in _CONNECTION:
        parser.add_argument(option, metavar=metavar, help=text)
    text = "how long to wait for an answer, such as 500ms, 30s, 1m (60s)"
    duration(parser, "--timeout", text, default=60, read=seconds_above_zero)


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Declare the options of connection and output."""
    group = parser.add_argument_group("connection and output")
    add_place(group)
    number(group, "--attempts", "times a request is sent at most (8)", default=8)
    flag(group, "--json", "JSON lines, as in a pipe")
    for action in group._group_actions:
        setattr(action, SHARED, True)


@functools.cache
def options_anywhere() -> Mapping[str, bool]:
    """Return the options of every command that talks to the server; True if it takes a value."""
    parser = argparse.ArgumentParser(add_help=False)
    add_connection(parser)
    return {one.option_strings[0]: one.nargs is None for one in parser._actions}


def name_of(option: str) -> str:
    """Return the name under which the value of an option is found."""
    return option.removeprefix("--").replace("-", "_")


def connect(kind: type[S], arguments: argparse.Namespace) -> S:
    """Make a client as the options and the environment say; it prints each warning once."""

    @functools.cache
    def warn(text: str) -> None:
        print(f"zaqar-lite: warning: {printable(text)}", file=sys.stderr)

    return kind(
        **contexts.client_options(vars(arguments)),
        retries=sdk.RetryPolicy(attempts=arguments.attempts, on_retry=Retrying()),
        timeout=arguments.timeout,
        on_warning=lambda warning: warn(warning.description or warning.title),
    )


def run(handler: Handler, arguments: argparse.Namespace) -> int:
    """Run a command with a client; errors become one line on standard error and an exit code."""
    output = Output(as_json=arguments.json)
    try:
        with connect(sdk.Client, arguments) as client:
            code = handler(client, arguments, output)
    except (sdk.NotFound, sdk.ClaimLost) as error:
        if error.title == sdk.calls.NO_PATH and arguments.command in PARTS:
            needs = f"{arguments.command} resources: it needs {PARTS[arguments.command]}"
            return explain(UsageError(f"this server has no {needs}"), NOT_FOUND)
        return explain(error, NOT_FOUND)
    except (sdk.Unreachable, sdk.Unavailable) as error:
        return explain(error, UNAVAILABLE)
    except (sdk.ZaqarError, ImportError) as error:
        if isinstance(error, sdk.Unauthenticated):
            error.title += " (--access-key, --os-cloud or --signed says who asks)"
        return explain(error, FAILED)
    except BrokenPipeError:
        raise  # `main` knows what to do
    except (UsageError, ValueError, OSError) as error:
        return explain(error, USAGE)
    return code or OK


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Ask before something is destroyed, unless --yes was given.

    Raises:
        UsageError: the answer was no, or there is nobody to ask.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Give --yes to say so without a terminal.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("nothing was done")


def explain(error: Exception, code: int) -> int:
    """Print an error in one line; return the exit code."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"zaqar-lite: {printable(text)}", file=sys.stderr)
    return code


def why_empty(client: "sdk.Client", given: argparse.Namespace, text: str) -> str:
    """Return `text` with the reason behind it: which messages of the queue were not looked at.

    A permission that is not enough to ask leaves the text as it is.
    """
    queue = given.queue
    try:
        stats = client.stats(queue)
    except sdk.ZaqarError:
        return f"{text}."
    if is_absent(client, queue):
        return f"{text}: there is no queue of this name."
    hidden = [
        f"{count} {'is' if count == 1 else 'are'} {state} "
        f"(zaqar-lite message list {queue} --include-{state})"
        for state, count in (("delayed", stats.delayed), ("claimed", stats.claimed))
        if count and not vars(given).get(f"include_{state}")
    ]
    return "; ".join([text, *hidden]) + "."


def check_made(client: "sdk.Client", name: str) -> None:
    """Refuse the name of a queue, or a `Topic`, that nobody has made.

    Raises:
        NotFound: there is none.
    """
    if not client.queue_exists(name):
        raise sdk.NotFound(f"No such {'topic' if isinstance(name, sdk.Topic) else 'queue'}", name)


def is_absent(client: "sdk.Client", queue: str) -> bool:
    """Whether nobody has made a queue, and nothing is in it; False if that may not be asked."""
    try:
        return not client.queue_exists(queue) and not client.stats(queue).total
    except sdk.ZaqarError:
        return False
