"""`openstack messaging message show|delete|edit` and `delayed list|cancel`."""

import argparse
import datetime as dt
import json
from collections.abc import Iterable, Iterator
from typing import Any

from osc_lib.command import command

from zaqar_lite.client import Client, Message
from zaqar_lite.openstack.connection import QueueCommand, connect

Table = tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]
COLUMNS = ("ID", "Age", "TTL", "Claim Count", "Delayed Until", "Body")


def row(message: Message) -> tuple[Any, ...]:
    """Return a message's cells under COLUMNS."""
    until = message.delay_expires
    return (
        message.id,
        message.age,
        message.ttl,
        message.claim_count,
        until.isoformat() if until is not None else None,
        json.dumps(message.body, ensure_ascii=False),
    )


def delayed(client: Client, queue: str) -> Iterator[Message]:
    """Yield the messages that cannot be claimed yet."""
    now = dt.datetime.now(dt.UTC)
    for message in client.list_messages(queue, include_delayed=True, details=True):
        if message.delay_expires is not None and message.delay_expires > now:
            yield message


class ShowMessage(QueueCommand, command.Lister):
    """Show messages by id, whatever their state."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: D102
        parser.add_argument("id", metavar="<id>", nargs="+")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Fetch them."""
        with connect(self.app) as client:
            found = client.get_messages(parsed_args.queue, parsed_args.id, details=True)
            return COLUMNS, [row(message) for message in found]


class DeleteMessage(QueueCommand):
    """Delete messages; claimed ones need the id of their claim."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: D102
        parser.add_argument("id", metavar="<id>", nargs="+")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--claim-id", metavar="<claim>", help="The claim that holds them")
        group.add_argument("--force", action="store_true", help="Delete them whoever holds them")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete them."""
        with connect(self.app) as client:
            if parsed_args.force:
                client.delete_messages(parsed_args.queue, parsed_args.id, force=True)
                return
            for one in parsed_args.id:
                client.delete_message(parsed_args.queue, one, claim_id=parsed_args.claim_id)


class EditMessage(QueueCommand, command.ShowOne):
    """Change a message that is still delayed."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: D102
        parser.add_argument("id", metavar="<id>")
        parser.add_argument("--body", metavar="<json>", type=json.loads, default=..., help="JSON")
        parser.add_argument("--message-ttl", metavar="<seconds>", type=int)
        parser.add_argument("--delay", metavar="<seconds>", type=int, help="Counted from now")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Any]:
        """Change it."""
        with connect(self.app) as client:
            client.edit(
                parsed_args.queue,
                parsed_args.id,
                body=parsed_args.body,
                ttl=parsed_args.message_ttl,
                delay=parsed_args.delay,
            )
            changed = client.get_message(parsed_args.queue, parsed_args.id, details=True)
            return COLUMNS, row(changed)


class ListDelayed(QueueCommand, command.Lister):
    """List the messages that cannot be claimed yet."""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """List them."""
        with connect(self.app) as client:
            return COLUMNS, [row(message) for message in delayed(client, parsed_args.queue)]


class CancelDelayed(QueueCommand):
    """Take messages back before anyone has claimed them."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: D102
        group = parser.add_mutually_exclusive_group(required=True)
        group.add_argument("id", metavar="<id>", nargs="*", default=[])
        group.add_argument("--all", action="store_true", help="All that are still delayed")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Take them back."""
        with connect(self.app) as client:
            ids = parsed_args.id
            if parsed_args.all:
                ids = [message.id for message in delayed(client, parsed_args.queue)]
            for one in ids:
                client.cancel(parsed_args.queue, one)
