"""`zaqar-lite pool` and `zaqar-lite flavor`: the message stores of a server."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, UsageError, add_leaf, add_noun

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_POOLS = ("name", "uri", "weight", "flavor")
_FLAVORS = ("name", "pools", "capabilities")


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
    verbs = add_noun(subparsers, "pool", "make, list, change and delete pools of queues")
    create = add_leaf(verbs, "create", create_pool, "make a pool, or replace the one of this name")
    create.add_argument("name")
    create.add_argument("uri", metavar="URI", help="its message store, with credentials")
    create.add_argument("--weight", type=int, default=100, help="its share of new queues (100)")
    add_leaf(verbs, "list", list_pools, "list the pools, without credentials")
    show = add_leaf(verbs, "show", show_pool, "show a pool, without credentials")
    change = add_leaf(verbs, "update", update_pool, "change a pool")
    change.add_argument("name")
    change.add_argument("--uri", metavar="URI", help="where its messages are from now on")
    change.add_argument("--weight", type=int, help="its share of new queues; 0 for none")
    for leaf in (create, change):
        leaf.add_argument("--flavor", help="the flavor that it serves; '' for none")
        leaf.add_argument("--options", metavar="JSON", help="settings of its driver, by name")
    drain = add_leaf(verbs, "drain", drain_pool, "move the queues of a pool of weight 0 to others")
    drain.add_argument("--status", action="store_true", help="only tell how far that is")
    delete = add_leaf(verbs, "delete", delete_pool, "delete a pool in which no queue lies")
    for leaf in (show, drain, delete):
        leaf.add_argument("name")
    verbs = add_noun(subparsers, "flavor", "make, list, change and delete flavors of queues")
    for verb, handler, text in (
        ("create", create_flavor, "make a flavor, or replace the one of this name"),
        ("update", update_flavor, "give a flavor other pools"),
    ):
        leaf = add_leaf(verbs, verb, handler, text)
        leaf.add_argument("name")
        leaf.add_argument("pools", nargs="+", metavar="POOL")
    add_leaf(verbs, "list", list_flavors, "list the project's flavors")
    for verb, handler, text in (
        ("show", show_flavor, "show a flavor"),
        ("delete", delete_flavor, "delete a flavor"),
    ):
        add_leaf(verbs, verb, handler, text).add_argument("name")


def create_pool(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Make a pool."""
    client.create_pool(
        arguments.name,
        arguments.uri,
        weight=arguments.weight,
        flavor=arguments.flavor or None,
        options=_options(arguments),
    )


def list_pools(client: "Client", _: argparse.Namespace, output: Output) -> None:
    """List pools."""
    rows = (as_row(pool) for pool in client.list_pools())
    output.rows(rows, _POOLS, empty="No pools: all queues lie in the server's own store.")


def show_pool(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a pool."""
    output.record(as_row(client.get_pool(arguments.name)))


def update_pool(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Change a pool."""
    changes: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("uri", "weight", "flavor")
        if getattr(arguments, name) is not None
    }
    if arguments.options is not None:
        changes["options"] = _options(arguments)
    if not changes:
        message = "nothing to change: give --uri, --weight, --flavor or --options"
        raise UsageError(message)
    output.record(as_row(client.update_pool(arguments.name, **changes)))


def drain_pool(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Begin to drain a pool, or tell how far that is."""
    ask = client.get_pool_drain if arguments.status else client.drain_pool
    output.record(as_row(ask(arguments.name)))


def delete_pool(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Delete a pool."""
    client.delete_pool(arguments.name)


def create_flavor(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Make a flavor."""
    client.create_flavor(arguments.name, arguments.pools)


def list_flavors(client: "Client", _: argparse.Namespace, output: Output) -> None:
    """List flavors."""
    rows = (as_row(flavor) for flavor in client.list_flavors())
    output.rows(rows, _FLAVORS, empty="No flavors.")


def show_flavor(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a flavor."""
    output.record(as_row(client.get_flavor(arguments.name)))


def update_flavor(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Give a flavor other pools."""
    output.record(as_row(client.update_flavor(arguments.name, arguments.pools)))


def delete_flavor(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Delete a flavor."""
    client.delete_flavor(arguments.name)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.options is None:
        return {}
    try:
        options = json.loads(arguments.options)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        message = "--options takes a JSON object, such as '{\"timeout\": 5}'"
        raise UsageError(message)
    return options
