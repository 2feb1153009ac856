"""`zaqar-lite data-key`: the keys that seal the messages of encrypted queues."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, add_leaf, add_noun

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_COLUMNS = ("id", "created_at", "server_key", "current")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "data-key", "list and rotate the keys of encrypted queues")
    add_leaf(verbs, "list", list_keys, "list the project's keys; they themselves are not shown")
    add_leaf(verbs, "rotate", rotate, "encrypt what is posted from now on with a new key")


def list_keys(client: "Client", _: argparse.Namespace, output: Output) -> None:
    """List the keys."""
    keys = client.list_data_keys()
    output.rows(map(as_row, keys), _COLUMNS, empty="Nothing has been encrypted yet.")


def rotate(client: "Client", _: argparse.Namespace, output: Output) -> None:
    """Make a key."""
    output.rows(map(as_row, client.rotate_data_key()), _COLUMNS, empty="")
