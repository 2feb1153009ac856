"""`zaqar-lite key` and `zaqar-lite data-key`: who may do what, and what seals messages."""

import argparse

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import duration, flag, repeated
from zaqar_lite.commands.base_command import Leaves, Verbs
from zaqar_lite.commands.output import Output, as_row


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
    verbs = Verbs.of(subparsers, "key", "make, list, disable and rotate keys")
    text = "make a key of the project, and print it: this is the only time"
    create = verbs.leaf("create", create_key, text)
    text = "what it opens, such as 'send:orders*'; send, receive, read, manage, admin or '*'"
    repeated(create, "--grant", "VERB:QUEUES", text, required=True)
    repeated(create, "--deny", "VERB:QUEUES", "what it does not open, whatever is granted")
    duration(create, "--expires", "how long it works, such as 90d (for ever)")
    create.add_argument("--description", default="", help="for whoever looks at the list")
    flag(create, "--only-key", "print the key alone, for $(...) in a shell")
    flag(create, "--operator", "make an operator's key, which has no project")
    verbs.list(
        "list",
        "list_keys",
        "list the project's keys, without their texts",
        columns=("id", "project", "grants", "expires_at", "disabled", "description"),
        empty="No keys.",
    )
    verbs.call("disable", "disable_key", "disable a key, within 5 seconds", "id")
    verbs.call(
        "enable",
        lambda client, given: client.disable_key(given.id, disabled=False),
        "let a disabled key work again",
        "id",
    )
    verbs.delete("delete a key", "get_key", "delete_key", "id")
    text = "make a key with the same grants; the old one then ends"
    rotate = verbs.call("rotate", "rotate_key", text, "id")
    duration(rotate, "--overlap", "how long the old one still works (1d)")
    verbs = Verbs.of(subparsers, "data-key", "list and rotate the keys of encrypted queues")
    columns = ("id", "created_at", "server_key", "current")
    text = "list the project's keys; they themselves are not shown"
    empty = "Nothing has been encrypted yet."
    verbs.list("list", "list_data_keys", text, columns=columns, empty=empty)
    text = "encrypt what is posted from now on with a new key"
    verbs.list("rotate", "rotate_data_key", text, columns=columns)


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
