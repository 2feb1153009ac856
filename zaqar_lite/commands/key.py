"""`zaqar-lite key`: who may do what."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.durations import whole_seconds
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, add_leaf, add_noun

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_COLUMNS = ("id", "project", "grants", "expires_at", "disabled", "description")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "key", "make, list, disable and rotate keys")
    create = add_leaf(
        verbs, "create", create_key, "make a key of the project, and print it: the only copy"
    )
    create.add_argument(
        "--grant",
        action="append",
        required=True,
        metavar="VERB:QUEUES",
        help="what it opens, such as 'send:orders*'; send, receive, read, manage, admin or '*'",
    )
    create.add_argument(
        "--deny",
        action="append",
        default=[],
        metavar="VERB:QUEUES",
        help="what it does not open, whatever is granted",
    )
    create.add_argument(
        "--expires", type=whole_seconds, metavar="DURATION", help="when it ends, such as 90d"
    )
    create.add_argument("--description", default="", help="for whoever looks at the list")
    create.add_argument(
        "--only-key", action="store_true", help="print the key alone, for $(...) in a shell"
    )
    create.add_argument(
        "--operator", action="store_true", help="one that is bound to no project, instead"
    )
    add_leaf(verbs, "list", list_keys, "list the project's keys; they themselves are not shown")
    for name, handler, text in (
        ("disable", disable, "disable a key, within 5 seconds"),
        ("enable", enable, "let a disabled key work again"),
        ("delete", delete, "delete a key"),
    ):
        add_leaf(verbs, name, handler, text).add_argument("id")
    rotate = add_leaf(
        verbs, "rotate", rotate_key, "make a key with the same grants; the old one then ends"
    )
    rotate.add_argument("id")
    rotate.add_argument(
        "--overlap",
        type=whole_seconds,
        metavar="DURATION",
        help="how long the old one lives on (1d)",
    )


def create_key(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make a key."""
    grants = [*arguments.grant, *(f"!{text}" for text in arguments.deny)]
    made = client.create_key(
        grants,
        operator=arguments.operator,
        expires=arguments.expires,
        description=arguments.description,
    )
    if arguments.only_key:
        print(made.key)
        return
    output.record(as_row(made))


def list_keys(client: "Client", _: argparse.Namespace, output: Output) -> None:
    """List keys."""
    rows = (as_row(key) for key in client.list_keys())
    output.rows(rows, _COLUMNS, empty="No keys.")


def disable(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Disable a key."""
    output.record(as_row(client.disable_key(arguments.id)))


def enable(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Let a key work again."""
    output.record(as_row(client.disable_key(arguments.id, disabled=False)))


def delete(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Delete a key."""
    client.delete_key(arguments.id)


def rotate_key(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make a key like this one."""
    output.record(as_row(client.rotate_key(arguments.id, overlap=arguments.overlap)))
