"""`zaqar-lite pool` and `zaqar-lite flavor`: the message stores of a server."""

import argparse

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import flag, json_object
from zaqar_lite.commands.base_command import Leaves, Verbs


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
    _add_pool(Verbs.of(subparsers, "pool", "make, list, change and delete pools of queues"))
    _add_flavor(Verbs.of(subparsers, "flavor", "make, list, change and delete flavors of queues"))


def _add_pool(verbs: Verbs) -> None:
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


def _add_flavor(verbs: Verbs) -> None:
    text = "make a flavor, or replace the one of this name"
    create = verbs.call("create", "create_flavor", text, "name")
    text = "give a flavor other pools"
    change = verbs.call("update", "update_flavor", text, "name")
    for leaf in (create, change):
        leaf.add_argument("pool_list", nargs="+", metavar="POOL")
    columns = ("name", "pools", "capabilities")
    text, empty = "list the project's flavors", "No flavors."
    verbs.list("list", "list_flavors", text, columns=columns, empty=empty)
    verbs.call("show", "get_flavor", "show a flavor", "name")
    verbs.delete("delete a flavor", "get_flavor", "delete_flavor", "name")
