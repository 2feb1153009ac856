"""`zaqar-lite key`, `data-key`, `quota`, `pool`, `flavor`, `health`: what operators look after."""

import argparse
import time

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import UsageError, duration, flag, json_object, repeated
from zaqar_lite.commands.base_command import UNAVAILABLE, Leaves, Verbs
from zaqar_lite.commands.output import Output, as_row

_QUOTA = ("quota", "limit", "used")


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
    for add in (_add_keys, _add_quota, _add_pool, _add_flavor, _add_health):
        add(subparsers)


def _add_keys(subparsers: Leaves) -> None:
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


def _add_quota(subparsers: Leaves) -> None:
    verbs = Verbs.of(subparsers, "quota", "show, set and reset quotas of projects")
    show = verbs.list(
        "show",
        lambda client, given: _rows(client.show_quota(given.of)),
        "show the project's quotas and what it has",
        columns=_QUOTA,
    )
    show.add_argument("of", nargs="?", metavar="PROJECT", help="another project (operators only)")
    change = verbs.list(
        "set",
        lambda client, given: _rows(client.set_quota(given.of, **dict(map(_limit, given.limits)))),
        "set a project's quotas, in place of all that were set for it",
        columns=_QUOTA,
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
        raise UsageError(f"{text!r} is not a quota: write queues=100, or queues=none") from None


def _rows(shown: "sdk.ProjectQuota") -> list[dict[str, object]]:
    return [
        {"quota": name, "limit": limit, "used": shown.usage.get(name)}
        for name, limit in shown.quotas.items()
    ]


def _add_pool(subparsers: Leaves) -> None:
    verbs = Verbs.of(subparsers, "pool", "make, list, change and delete pools of queues")
    text = "make a pool, or replace the one of this name"
    create = verbs.call("create", "create_pool", text, "name")
    create.add_argument("uri", metavar="URI", help="its message store, with credentials")
    create.add_argument("--weight", type=int, default=100, help="its share of new queues (100)")
    verbs.list(
        "list",
        "list_pools",
        "list the pools, without credentials",
        columns=("name", "uri", "weight", "flavor"),
        empty="No pools: all queues lie in the server's own store.",
    )
    verbs.call("show", "get_pool", "show a pool, without credentials", "name")
    change = verbs.call("update", "update_pool", "change a pool", "name")
    change.add_argument("--uri", metavar="URI", help="where its messages are from now on")
    change.add_argument("--weight", type=int, help="its share of new queues; 0 for none")
    create.add_argument("--flavor", help="the flavor that it serves")
    change.add_argument("--flavor", help="the flavor that it serves; '' for none")
    for leaf in (create, change):
        text = "settings of its driver, by name"
        leaf.add_argument("--options", type=json_object, metavar="JSON", help=text)
    text = "move the queues of a pool of weight 0 to others"
    drain = verbs.call("drain", drain_pool, text, "name")
    flag(drain, "--status", "only tell how far that is")
    verbs.delete("delete a pool in which no queue lies", "get_pool", "delete_pool", "name")


def drain_pool(client: "sdk.Client", given: argparse.Namespace) -> "sdk.PoolDrain":
    """Begin to drain a pool, or tell how far that is."""
    return client.get_pool_drain(given.name) if given.status else client.drain_pool(given.name)


def _add_flavor(subparsers: Leaves) -> None:
    verbs = Verbs.of(subparsers, "flavor", "make, list, change and delete flavors of queues")
    text = "make a flavor, or replace the one of this name"
    create = verbs.call("create", "create_flavor", text, "name")
    text = "give a flavor other pools"
    change = verbs.call("update", "update_flavor", text, "name")
    for leaf in (create, change):
        leaf.add_argument("pool_list", nargs="+", metavar="POOL")
    columns = ("name", "pools", "capabilities")
    verbs.list("list", "list_flavors", "list the project's flavors", columns=columns)
    verbs.call("show", "get_flavor", "show a flavor", "name")
    verbs.delete("delete a flavor", "get_flavor", "delete_flavor", "name")


def _add_health(subparsers: Leaves) -> None:
    text = "ask whether the server and its store are up; exit code 4 if not"
    parser = Verbs(subparsers).leaf("health", health, text)
    parser.set_defaults(attempts=1)  # how it is now, not after a while
    text = "have the server try every operation (it must run with --admin-mode)"
    flag(parser, "--operations", text)


def health(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Ask for the server's health.

    Raises:
        ZaqarError: the server does not try its operations when it is asked to.
    """
    if not arguments.operations:
        begin = time.monotonic()
        client.ping()
        milliseconds = round(1000 * (time.monotonic() - begin), 1)
        output.record({"url": client.url, "up": True, "milliseconds": milliseconds})
        return None
    try:
        found = client.health()
    except sdk.NotFound as error:
        raise sdk.ZaqarError(
            "Not available", "this server tries no operations: it needs `serve --admin-mode`"
        ) from error
    operations = [
        {"operation": name, **status} for name, status in found["operation_status"].items()
    ]
    output.rows(operations, ("operation", "succeeded", "seconds"), empty="No operations.")
    return None if all(one["succeeded"] for one in operations) else UNAVAILABLE
