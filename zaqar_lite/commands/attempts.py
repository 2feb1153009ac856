"""A message shown in full, with the table of its attempts: `message show` and `dlq show`."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, add_leaf

if TYPE_CHECKING:
    from zaqar_lite.client import Client, Message

COLUMNS = ("number", "ended_at", "outcome", "delay", "reason", "detail", "client_id")


def add_verb(verbs: Leaves, text: str, queue: str | None = None) -> argparse.ArgumentParser:
    """Declare the verb `show`; `queue` is the help text of its argument `queue`."""
    parser = add_leaf(verbs, "show", show, text)
    parser.add_argument("queue", help=queue)
    parser.add_argument("id", nargs="+")
    return parser


def show(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show messages by id, one after the other.

    Raises:
        MessageNotFound: some of them do not exist; the others were shown.
    """
    queue, wanted = arguments.queue, arguments.id
    found = {message.id: message for message in client.get_messages(queue, wanted, details=True)}
    for one in wanted:
        if one in found:
            _show_one(found[one], output)
    missing = [one for one in wanted if one not in found]
    if missing:
        from zaqar_lite.client import MessageNotFound  # noqa: PLC0415 - only once a command runs

        raise MessageNotFound("Not found", f"no message {', '.join(missing)} in {queue}")


def _show_one(message: "Message", output: Output) -> None:
    record = as_row(message)
    if output.as_json:
        output.record(record)
        return
    record.pop("attempts", None)  # they have a table of their own
    output.record(record)
    if message.attempts:
        output.rows(map(as_row, message.attempts), COLUMNS, empty="")
    elif message.attempts is not None:
        output.line("No attempt has ended yet.")
