"""`zaqar-lite quota`: what a project may have, and has."""

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import UsageError
from zaqar_lite.commands.base_command import Leaves, Verbs

_COLUMNS = ("quota", "limit", "used")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = Verbs.of(subparsers, "quota", "show, set and reset quotas of projects")
    show = verbs.list(
        "show",
        lambda client, given: _rows(client.show_quota(given.of)),
        "show the project's quotas and what it has",
        columns=_COLUMNS,
        empty="No quotas.",
    )
    show.add_argument("of", nargs="?", metavar="PROJECT", help="another project (operators only)")
    change = verbs.list(
        "set",
        lambda client, given: _rows(client.set_quota(given.of, **dict(map(_limit, given.limits)))),
        "set a project's quotas, in place of all that were set for it",
        columns=_COLUMNS,
        empty="No quotas.",
    )
    change.add_argument("of", metavar="PROJECT")
    text = "such as queues=100, or bytes=none"
    change.add_argument("limits", nargs="+", metavar="QUOTA=NUMBER", help=text)
    text = "give a project the default quotas"
    reset = verbs.call("reset", lambda client, given: client.reset_quota(given.of), text)
    reset.add_argument("of", metavar="PROJECT")


def _limit(text: str) -> tuple[str, int | None]:
    name, _, number = text.partition("=")
    if number == "none":
        return name, None
    try:
        return name, int(number)
    except ValueError:
        message = f"{text!r} is not a quota: write queues=100, or queues=none"
        raise UsageError(message) from None


def _rows(shown: "sdk.ProjectQuota") -> list[dict[str, object]]:
    return [
        {"quota": name, "limit": limit, "used": shown.usage.get(name)}
        for name, limit in shown.quotas.items()
    ]
