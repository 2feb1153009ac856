"""`zaqar-lite message release|extend|dead`: settle single messages that a claim holds."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from zaqar_lite.commands.durations import whole_seconds
from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import FAILED, Leaves, add_leaf

if TYPE_CHECKING:
    from zaqar_lite.client import Client, Settled, Settlement


def add_verbs(verbs: Leaves) -> None:
    """Declare the verbs of `message` that need a claim."""
    parser = _declare(verbs, "release", release, "give messages back before their claim ends")
    parser.add_argument(
        "--delay",
        type=whole_seconds,
        metavar="DURATION",
        help="how long until they can be claimed again, such as 30s or 5m "
        "(at once; for a failure, as the queue's _retry_backoff says)",
    )
    parser.add_argument("--failed", action="store_true", help="it counts as a failure")
    _why(parser)
    parser = _declare(verbs, "extend", extend, "hold messages for longer")
    parser.add_argument(
        "--ttl",
        type=whole_seconds,
        default=300,
        metavar="DURATION",
        help="how long from now, such as 90s or 1h (5m)",
    )
    _why(_declare(verbs, "dead", dead, "send messages to the dead letters now"))


def _declare(
    verbs: Leaves,
    name: str,
    handler: Callable[["Client", argparse.Namespace, Output], int | None],
    text: str,
) -> argparse.ArgumentParser:
    parser = add_leaf(verbs, name, handler, text)
    parser.add_argument("queue")
    parser.add_argument("id", nargs="+")
    parser.add_argument("--claim", metavar="ID", required=True, help="the claim that holds them")
    return parser


def _why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="WORD", help="why, in a word (128 bytes)")
    parser.add_argument("--detail", metavar="TEXT", help="why, in more words (2 KiB)")


def release(client: "Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Give messages back."""
    from zaqar_lite.client import Settlement  # noqa: PLC0415 - only once a command runs

    settlements = [
        Settlement.release(
            one,
            delay=arguments.delay,
            failed=arguments.failed,
            reason=arguments.reason,
            detail=arguments.detail,
        )
        for one in arguments.id
    ]
    return _settle(client, arguments, output, settlements, "released")


def extend(client: "Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Hold messages for longer."""
    from zaqar_lite.client import Settlement  # noqa: PLC0415 - only once a command runs

    settlements = [Settlement.extend(one, arguments.ttl) for one in arguments.id]
    return _settle(client, arguments, output, settlements, "extended")


def dead(client: "Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Send messages to the dead letters."""
    from zaqar_lite.client import Settlement  # noqa: PLC0415 - only once a command runs

    settlements = [
        Settlement.dead(one, reason=arguments.reason, detail=arguments.detail)
        for one in arguments.id
    ]
    return _settle(client, arguments, output, settlements, "dead")


def _settle(
    client: "Client",
    arguments: argparse.Namespace,
    output: Output,
    settlements: "Sequence[Settlement]",
    done: str,
) -> int | None:
    """Settle, and tell of each message what became of it; 1 where one was not settled.

    Raises:
        MessageNotFound: none of them exists.
    """
    from zaqar_lite.client import MessageNotFound  # noqa: PLC0415 - only once a command runs

    results = client.settle(arguments.queue, arguments.claim, settlements)
    rows = [_row(result, done) for result in results]
    reasons = any("reason" in row for row in rows)
    output.rows(rows, ("id", done, *(["reason"] if reasons else [])), empty="")
    if all(result.status == 404 for result in results):
        raise MessageNotFound("Not found", "none of these messages exist")
    return FAILED if reasons else None


def _row(result: "Settled", done: str) -> dict[str, object]:
    if result.status == 204:
        return {"id": result.id, done: True}
    return {"id": result.id, done: False, "reason": result.description}
