"""`openstack messaging dlq list|count|redrive`."""

import argparse
import json
import logging
from typing import Any

from osc_lib.command import command

from zaqar_lite.client import Message
from zaqar_lite.openstack.connection import QueueCommand, connect
from zaqar_lite.openstack.messages import Table

LOG = logging.getLogger(__name__)


def _letter(letter: Message) -> tuple[Any, ...]:
    origin = letter.dead_letter
    moved_at = origin.moved_at if origin is not None else None
    return (
        letter.id,
        origin.source if origin is not None else None,
        moved_at.isoformat() if moved_at is not None else None,
        origin.reason if origin is not None else None,
        origin.claim_count if origin is not None else None,
        json.dumps(letter.body, ensure_ascii=False),
    )


class ListDeadLetters(QueueCommand, command.Lister):
    """List dead letters with the queue that they came from."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: D102
        parser.add_argument("--source", metavar="<queue>", help="Only letters of this queue")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """List them."""
        with connect(self.app) as client:
            letters = client.list_dead_letters(parsed_args.queue, source=parsed_args.source)
            columns = ("ID", "Source", "Moved At", "Reason", "Claim Count", "Body")
            return columns, [_letter(letter) for letter in letters]


class CountDeadLetters(QueueCommand, command.Lister):
    """Count dead letters by the queue that they came from."""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Count them."""
        with connect(self.app) as client:
            sources = client.count_dead_letters(parsed_args.queue)
            return ("Source", "Letters"), [(source.queue, source.letters) for source in sources]


class RedriveDeadLetters(QueueCommand, command.Lister):
    """Move dead letters back; it may be killed and run again."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: D102
        parser.add_argument("--to", metavar="<queue>", help="Else each goes to its own source")
        parser.add_argument("--source", metavar="<queue>", help="Only letters of this queue")
        parser.add_argument("--limit", metavar="<count>", type=int)
        parser.add_argument("--dry-run", action="store_true", help="Only count")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Move them."""
        with connect(self.app) as client:
            result = client.redrive(
                parsed_args.queue,
                to=parsed_args.to,
                source=parsed_args.source,
                limit=parsed_args.limit,
                dry_run=parsed_args.dry_run,
            )
            for count, why in (
                (result.without_source, "name no source (give --to)"),
                (len(result.refused), "are refused by their target and stay"),
                (sum(result.stayed.values()), f"stay: {', '.join(result.stayed)}"),
                (result.held, "are claimed by somebody (run again for them)"),
                (result.lost, "are in both queues (run again within ten minutes)"),
            ):
                if count:
                    LOG.warning("Letters that %s: %d", why, count)
            column = "Would Move" if result.dry_run else "Moved"
            return ("Target", column), list(result.moved.items())
