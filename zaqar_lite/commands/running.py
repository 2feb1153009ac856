"""What every command has: its options of connection and output, and its exit code.

0   done
1   refused, or only partly done
2   wrong usage
3   not found: no such queue, message or claim
4   unavailable: no answer, overloaded, or a failure of the server
130 interrupted
141 whoever read the output went away
"""

import argparse
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from zaqar_lite.commands import contexts
from zaqar_lite.commands.durations import seconds_above_zero
from zaqar_lite.commands.output import Output, printable
from zaqar_lite.commands.parsing import Leaf
from zaqar_lite.commands.retrying import Retrying

if TYPE_CHECKING:
    from zaqar_lite.client import AsyncClient, Auth, Client, ServerWarning
    from zaqar_lite.client.shell import Shell

OK, FAILED, USAGE, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3, 4

Handler = Callable[["Client", argparse.Namespace, Output], int | None]
Leaves: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
S = TypeVar("S", bound="Shell")

PARTS = {
    "key": "`serve --auth keys`",
    "pool": "`serve --pooling --admin-mode`",
    "flavor": "`serve --pooling --admin-mode`",
    "data-key": "the setting encryption_key_file",
}
"""Commands whose routes a server has only when it was started so."""


class UsageError(Exception):
    """The words of the command make no sense together; the text says which."""


def add_noun(subparsers: Leaves, name: str, text: str) -> Leaves:
    """Declare a noun; the result takes its verbs."""
    parser = subparsers.add_parser(name, help=text, description=text)
    return parser.add_subparsers(
        title="verbs", dest=f"{name}_verb", metavar="VERB", required=True, parser_class=Leaf
    )


def at_least(minimum: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers, for argparse."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum or (most is not None and number > most):
            end = "" if most is None else f" to {most}"
            message = f"a whole number from {minimum}{end} is needed, not {text!r}"
            raise argparse.ArgumentTypeError(message)
        return number

    return read


def above_zero(text: str) -> float:
    """Read a number above 0, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        message = f"a number above 0 is needed, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return number


def add_leaf(subparsers: Leaves, name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
    """Declare a command that talks to the server."""
    parser = subparsers.add_parser(name, help=text, description=text)
    parser.set_defaults(run=lambda arguments: run(handler, arguments))
    add_connection(parser)
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Declare the options of connection and output."""
    group = parser.add_argument_group("connection and output")
    group.add_argument(
        "--context", metavar="NAME", help="a server of `zaqar-lite context` (ZAQAR_LITE_CONTEXT)"
    )
    group.add_argument("--url", help="the server (ZAQAR_LITE_URL, else http://127.0.0.1:8888)")
    group.add_argument("--project", help="the project (ZAQAR_LITE_PROJECT, else default)")
    group.add_argument(
        "--client-id", metavar="UUID", help="who is asking (ZAQAR_LITE_CLIENT_ID, else a new one)"
    )
    group.add_argument(
        "--access-key",
        metavar="KEY",
        help="a key of the server (ZAQAR_LITE_KEY, which other users of this machine can't see)",
    )
    group.add_argument(
        "--ca-file", metavar="FILE", help="who signed the server's certificate (ZAQAR_LITE_CA_FILE)"
    )
    group.add_argument(
        "--client-cert", metavar="FILE", help="certificate and key to show the server, in one file"
    )
    group.add_argument(
        "--os-cloud",
        metavar="NAME",
        help="log in as clouds.yaml says (ZAQAR_LITE_OS_CLOUD; OS_CLOUD where no URL is given)",
    )
    group.add_argument(
        "--signed",
        metavar="FILE",
        help="use a permission that `share` has printed (ZAQAR_LITE_SIGNED)",
    )
    group.add_argument(
        "--timeout",
        type=seconds_above_zero,
        default=60,
        metavar="DURATION",
        help="how long to wait for an answer, such as 500ms, 30s, 1m (60s)",
    )
    group.add_argument(
        "--attempts",
        type=at_least(1),
        default=8,
        metavar="N",
        help="times a request is sent at most (8)",
    )
    group.add_argument("--json", action="store_true", help="JSON lines, as in a pipe")


def connect(kind: type[S], arguments: argparse.Namespace) -> S:
    """Make a client as the options and the environment say."""
    from zaqar_lite.client import RetryPolicy  # noqa: PLC0415 - only once a command runs

    place = contexts.chosen(vars(arguments))
    return kind(
        place.url,
        project=place.project,
        client_id=place.client_id,
        auth=auth_at(place),
        retries=RetryPolicy(attempts=arguments.attempts, on_retry=Retrying()),
        timeout=arguments.timeout,
        ssl_context=place.tls(),
        on_warning=Warnings(),
    )


class Warnings:
    """Print each warning of the server once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, warning: "ServerWarning") -> None:
        """Print it, unless it was printed before."""
        text = warning.description or warning.title
        if text not in self._told:
            self._told.add(text)
            print(f"zaqar-lite: warning: {printable(text)}", file=sys.stderr)


def async_client(arguments: argparse.Namespace) -> "AsyncClient":
    """Make an async client as the options and the environment say."""
    from zaqar_lite.client import AsyncClient  # noqa: PLC0415 - only once a command runs

    return connect(AsyncClient, arguments)


def run(handler: Handler, arguments: argparse.Namespace) -> int:
    """Run a command with a client; errors become one line on standard error and an exit code."""
    from zaqar_lite.client import Client  # noqa: PLC0415 - only once a command runs
    from zaqar_lite.client import errors as client_errors  # noqa: PLC0415

    output = Output(as_json=arguments.json)
    try:
        with connect(Client, arguments) as client:
            code = handler(client, arguments, output)
    except (client_errors.NotFound, client_errors.ClaimLost) as error:
        if error.description is None and arguments.command in PARTS:
            return explain(_without(arguments.command), NOT_FOUND)
        return explain(error, NOT_FOUND)
    except (client_errors.Unreachable, client_errors.Unavailable) as error:
        return explain(error, UNAVAILABLE)
    except (client_errors.ZaqarError, ImportError) as error:
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
        message = f"{question} Give --yes to say so without a terminal."
        raise UsageError(message)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        message = "nothing was done"
        raise UsageError(message)


def pairs(words: list[str], option: str) -> dict[str, str]:
    """Read KEY=VALUE words.

    Raises:
        UsageError: a word has no `=`.
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            message = f"{option} takes KEY=VALUE, not {word!r}"
            raise UsageError(message)
        found[key] = value
    return found


def auth_at(place: contexts.Place) -> "Auth | None":
    """What proves who is asking: a signed permission, else a key, else the login of a cloud."""
    from zaqar_lite.client import KeyAuth, KeystoneAuth, SignedAuth  # noqa: PLC0415

    if place.signed is not None:
        return SignedAuth.from_file(place.signed)
    if place.key is not None:
        return KeyAuth(place.key)
    return KeystoneAuth.cloud(place.os_cloud) if place.os_cloud is not None else None


def _without(command: str) -> UsageError:
    """What to say when the server does not have a whole part of the API."""
    return UsageError(f"this server has no {command} resources: it needs {PARTS[command]}")


def explain(error: Exception, code: int) -> int:
    """Print an error in one line; return the exit code."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"zaqar-lite: {printable(text)}", file=sys.stderr)
    return code
