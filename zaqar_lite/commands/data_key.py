"""`zaqar-lite data-key`: the keys that seal the messages of encrypted queues."""

from zaqar_lite.commands.running import Leaves, add_list, add_noun

_COLUMNS = ("id", "created_at", "server_key", "current")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "data-key", "list and rotate the keys of encrypted queues")
    add_list(
        verbs,
        "list",
        lambda client, _: client.list_data_keys(),
        "list the project's keys; they themselves are not shown",
        columns=_COLUMNS,
        empty="Nothing has been encrypted yet.",
    )
    add_list(
        verbs,
        "rotate",
        lambda client, _: client.rotate_data_key(),
        "encrypt what is posted from now on with a new key",
        columns=_COLUMNS,
        empty="",
    )
