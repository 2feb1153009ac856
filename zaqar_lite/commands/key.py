"""`zaqar-lite key`: who may do what."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import (
    Leaves,
    add_call,
    add_delete,
    add_duration,
    add_leaf,
    add_list,
    add_noun,
)

if TYPE_CHECKING:
    from zaqar_lite.client import Client


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "key", "make, list, disable and rotate keys")
    text = "make a key of the project, and print it: this is the only time"
    create = add_leaf(verbs, "create", create_key, text)
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
    add_duration(create, "--expires", "how long it works, such as 90d (for ever)")
    create.add_argument("--description", default="", help="for whoever looks at the list")
    create.add_argument(
        "--only-key", action="store_true", help="print the key alone, for $(...) in a shell"
    )
    create.add_argument(
        "--operator", action="store_true", help="make an operator's key, which has no project"
    )
    add_list(
        verbs,
        "list",
        lambda client, _: client.list_keys(),
        "list the project's keys, without their texts",
        columns=("id", "project", "grants", "expires_at", "disabled", "description"),
        empty="No keys.",
    )
    text = "disable a key, within 5 seconds"
    add_call(verbs, "disable", lambda client, given: client.disable_key(given.id), text, "id")
    add_call(
        verbs,
        "enable",
        lambda client, given: client.disable_key(given.id, disabled=False),
        "let a disabled key work again",
        "id",
    )
    add_delete(
        verbs,
        "delete a key",
        lambda client, given: client.get_key(given.id),
        lambda client, given: client.delete_key(given.id),
        "id",
    )
    rotate = add_call(
        verbs,
        "rotate",
        lambda client, given: client.rotate_key(given.id, overlap=given.overlap),
        "make a key with the same grants; the old one then ends",
        "id",
    )
    add_duration(rotate, "--overlap", "how long the old one still works (1d)")


def create_key(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make a key."""
    made = client.create_key(
        [*arguments.grant, *(f"!{text}" for text in arguments.deny)],
        operator=arguments.operator,
        expires=arguments.expires,
        description=arguments.description,
    )
    if arguments.only_key:
        print(made.key)
    else:
        output.record(as_row(made))
