"""`zaqar-lite key` and `zaqar-lite data-key`: who may do what, and what seals messages."""

import argparse

from zaqar_lite.commands import sdk
from zaqar_lite.commands.base_command import (
    Leaves,
    add_call,
    add_delete,
    add_duration,
    add_leaf,
    add_list,
    add_noun,
)
from zaqar_lite.commands.output import Output, as_row


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
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
        "list_keys",
        "list the project's keys, without their texts",
        columns=("id", "project", "grants", "expires_at", "disabled", "description"),
        empty="No keys.",
    )
    add_call(verbs, "disable", "disable_key", "disable a key, within 5 seconds", "id")
    add_call(
        verbs,
        "enable",
        lambda client, given: client.disable_key(given.id, disabled=False),
        "let a disabled key work again",
        "id",
    )
    add_delete(verbs, "delete a key", "get_key", "delete_key", "id")
    text = "make a key with the same grants; the old one then ends"
    rotate = add_call(verbs, "rotate", "rotate_key", text, "id")
    add_duration(rotate, "--overlap", "how long the old one still works (1d)")
    verbs = add_noun(subparsers, "data-key", "list and rotate the keys of encrypted queues")
    columns = ("id", "created_at", "server_key", "current")
    text = "list the project's keys; they themselves are not shown"
    empty = "Nothing has been encrypted yet."
    add_list(verbs, "list", "list_data_keys", text, columns=columns, empty=empty)
    text = "encrypt what is posted from now on with a new key"
    add_list(verbs, "rotate", "rotate_data_key", text, columns=columns)


def create_key(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
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
