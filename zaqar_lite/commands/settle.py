"""`zaqar-lite message release|extend|dead`: settle single messages that a claim holds."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import (
    FAILED,
    Handler,
    Leaves,
    add_duration,
    add_leaf,
)

if TYPE_CHECKING:
    from zaqar_lite.client import Client, Settled, Settlement

DONE = {"release": "released", "extend": "extended", "dead": "dead"}
"""What the verbs call what they have done."""


def add_verbs(verbs: Leaves) -> None:
    """Declare the verbs of `message` that need a claim."""
    parser = _declare(verbs, "release", "give messages back before their claim ends")
    add_duration(
        parser,
        "--delay",
        "how long until they can be claimed again, such as 30s or 5m "
        "(at once; for a failure, as the queue's _retry_backoff says)",
    )
    parser.add_argument("--failed", action="store_true", help="count it as a failure")
    _why(parser)
    parser = _declare(verbs, "extend", "hold messages for longer")
    add_duration(parser, "--ttl", "how long from now, such as 90s or 1h (5m)", default=300)
    _why(_declare(verbs, "dead", "send messages to the dead letters now"))


def _declare(verbs: Leaves, verb: str, text: str) -> argparse.ArgumentParser:
    parser = add_leaf(verbs, verb, _settling(verb), text, "queue")
    parser.add_argument("id", nargs="+")
    parser.add_argument("--claim", metavar="ID", required=True, help="the claim that holds them")
    return parser


def _why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="WORD", help="why, in a word (128 bytes)")
    parser.add_argument("--detail", metavar="TEXT", help="why, in more words (2 KiB)")


def _settling(verb: str) -> Handler:
    """Return the handler of a verb, which settles messages and reports on each."""

    def settle(client: "Client", arguments: argparse.Namespace, output: Output) -> int | None:
        settlements = [_settlement(verb, one, arguments) for one in arguments.id]
        results = client.settle(arguments.queue, arguments.claim, settlements)
        rows = [_row(result, DONE[verb]) for result in results]
        all_absent = all(result.status == 404 for result in results)
        return report(output, rows, DONE[verb], all_absent=all_absent)

    return settle


def report(
    output: Output, rows: list[dict[str, object]], done: str, *, all_absent: bool
) -> int | None:
    """Print a row for each message; return 1 if it was not done to all of them.

    Raises:
        MessageNotFound: none of them exists.
    """
    reasons = any("reason" in row for row in rows)
    output.rows(rows, ("id", done, *(["reason"] if reasons else [])), empty="")
    if all_absent:
        from zaqar_lite.client import MessageNotFound  # noqa: PLC0415 - only once a command runs

        raise MessageNotFound("Not found", "none of these messages exist")
    return FAILED if reasons else None


def _settlement(verb: str, message_id: str, arguments: argparse.Namespace) -> "Settlement":
    from zaqar_lite.client import Settlement  # noqa: PLC0415 - only once a command runs

    if verb == "extend":
        return Settlement.extend(message_id, arguments.ttl)
    reason, detail = arguments.reason, arguments.detail
    if verb == "dead":
        return Settlement.dead(message_id, reason=reason, detail=detail)
    delay, failed = arguments.delay, arguments.failed
    return Settlement.release(message_id, delay=delay, failed=failed, reason=reason, detail=detail)


def _row(result: "Settled", done: str) -> dict[str, object]:
    if result.status == 204:
        return {"id": result.id, done: True}
    return {"id": result.id, done: False, "reason": result.description}
