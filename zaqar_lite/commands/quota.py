"""`zaqar-lite quota`: what a project may have, and has."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import Leaves, add_call, add_leaf, add_noun
from zaqar_lite.commands.values import UsageError

if TYPE_CHECKING:
    from zaqar_lite.client import Client
    from zaqar_lite.client.models import ProjectQuota

_COLUMNS = ("quota", "limit", "used")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "quota", "show, set and reset quotas of projects")
    show = add_leaf(verbs, "show", show_quota, "show the project's quotas and what it has")
    show.add_argument("of", nargs="?", metavar="PROJECT", help="another project (operators only)")
    change = add_leaf(
        verbs, "set", set_quota, "set a project's quotas, in place of all that were set for it"
    )
    change.add_argument("of", metavar="PROJECT")
    change.add_argument(
        "limits", nargs="+", metavar="QUOTA=NUMBER", help="such as queues=100, or bytes=none"
    )
    text = "give a project the default quotas"
    reset = add_call(verbs, "reset", lambda client, given: client.reset_quota(given.of), text)
    reset.add_argument("of", metavar="PROJECT")


def show_quota(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show quotas."""
    _print(client.show_quota(arguments.of), output)


def set_quota(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Set quotas."""
    limits = dict(_limit(text) for text in arguments.limits)
    _print(client.set_quota(arguments.of, **limits), output)


def _limit(text: str) -> tuple[str, int | None]:
    name, _, number = text.partition("=")
    if number == "none":
        return name, None
    try:
        return name, int(number)
    except ValueError:
        message = f"{text!r} is not a quota: write queues=100, or queues=none"
        raise UsageError(message) from None


def _print(shown: "ProjectQuota", output: Output) -> None:
    rows = (
        {"quota": name, "limit": limit, "used": shown.usage.get(name)}
        for name, limit in shown.quotas.items()
    )
    output.rows(rows, _COLUMNS, empty="No quotas.")
