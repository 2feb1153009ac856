"""`zaqar-lite delay ...`: plan, apply, verify, remove, migrate, export, publish, cancel, relay.

Exit codes: 0 done, 1 it failed, 2 drift was found or the words of the command make no sense.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from zaqar_lite.commands.argument_types import duration, flag, number, repeated, seconds
from zaqar_lite.commands.base_command import add_place, explain
from zaqar_lite.domain.errors import Invalid, ZaqarLiteError
from zaqar_lite.rabbitmq import exports
from zaqar_lite.rabbitmq.topology import (
    Anchor,
    Head,
    QueueType,
    Topology,
    Unroutable,
    bits_for,
    in_seconds,
)

OK, FAILED, DRIFT = 0, 1, 2
AMQP_URL = "amqp://guest:guest@127.0.0.1:5672/"
MANAGEMENT_URL = "http://guest:guest@127.0.0.1:15672"

Command = Callable[[argparse.Namespace, Topology], int]
say = partial(print, sep="\n", flush=True)
"""Prints lines at once."""


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `delay` and its sub-commands."""
    delay = subparsers.add_parser("delay", help="delays of any length on plain RabbitMQ")
    commands = delay.add_subparsers(dest="delay_command", metavar="COMMAND", required=True)
    shape = _shape()
    amqp = _address("--amqp-url", AMQP_URL, "amqp", "amqps")
    management = _address("--management-url", MANAGEMENT_URL, "http", "https")
    management.add_argument("--vhost", default="/")

    def add(
        name: str, text: str, *parents: argparse.ArgumentParser, run: Command | None = None
    ) -> argparse.ArgumentParser:
        """Declare a command, which speaks to a broker unless `run` is given."""
        parser = commands.add_parser(name, help=text, description=text, parents=[shape, *parents])
        parser.set_defaults(run=lambda arguments: _run(run or name, arguments))
        return parser

    add("plan", "print what a topology consists of", run=_plan)
    apply = add("apply", "make what is missing on the broker", amqp, management)
    apply.add_argument("--via", choices=["management", "amqp"], help="amqp for --amqp-url alone")
    flag(apply, "--prune", "delete what is extra (management)")
    verify = add("verify", "compare the broker with the topology", management)
    flag(verify, "--json", "print the findings as JSON")
    remove = add("remove", "delete the topology, if no messages wait", amqp)
    flag(remove, "--force", "lose what waits")
    migrate = add("migrate", "move what waits to another topology", amqp)
    migrate.add_argument("--to-prefix", required=True, help="the other topology's, applied before")
    larger = migrate.add_mutually_exclusive_group(required=True)
    duration(larger, "--to-max-delay", "its longest delay", read=seconds)
    larger.add_argument("--to-bits", type=int, help="instead of --to-max-delay")
    migrate.add_argument("--to-unit-ms", type=int, help="its precision; the same by default")
    export = add("export", "write the topology in another tool's form", run=_export)
    export.add_argument("format", choices=["definitions", "terraform", "mermaid"])
    export.add_argument("--output", type=Path, help="a file; for terraform a directory")
    publish = add("publish", "publish a message for a Zaqar queue", amqp)
    publish.add_argument("queue", help="the Zaqar queue")
    publish.add_argument("body", help="JSON, or '-' to read it from standard input")
    duration(publish, "--delay", "for example 90, 36h, 31d", default=0, read=seconds)
    publish.add_argument("--message-id", help="a new one is made up and printed by default")
    duration(publish, "--ttl", "counted from delivery", default=3600)
    publish.add_argument("--project", default="default")
    publish.add_argument("--destination", default="zaqar")
    cancel = add("cancel", "keep a message that waits from being posted", amqp)
    cancel.add_argument("message_id", help="its id, as `publish` has printed it")
    relay = add("relay", "post due messages to Zaqar until SIGTERM", amqp)
    add_place(relay)
    relay.add_argument("--zaqar-url", dest="url", metavar="URL", help="the same as --url")
    relay.add_argument("--destination", default="zaqar")
    number(relay, "--prefetch", "messages held at most", most=65_535, default=32)
    text = "serve Prometheus' metrics on 127.0.0.1; 0 picks a port"
    number(relay, "--metrics-port", text, least=0, most=65_535)
    delayed = add("explain", "show the key and the way of one delay", run=_explain)
    delayed.add_argument("delay", type=seconds, help="for example 13, 36h, 31d")
    delayed.add_argument("--destination", default="zaqar")


def _address(option: str, default: str, *schemes: str) -> argparse.ArgumentParser:
    """Return a parser of an address, or of `@FILE` with one in it.

    An address with a password in it would show in the list of processes. Errors show no password.
    """

    def read(text: str) -> str:
        try:
            url = Path(text[1:]).read_text("utf-8").strip() if text.startswith("@") else text
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"cannot read {text[1:]!r}: {error}") from error
        with suppress(ValueError):  # a port that is none
            parts = urlsplit(url)
            if parts.scheme in schemes and parts.hostname and parts.port != 0:
                return url
        raise argparse.ArgumentTypeError(f"an address that begins with {schemes[0]}:// is needed")

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(option, type=read, help=f"or @FILE ({default})")
    return parser


def _shape() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    size = parser.add_mutually_exclusive_group()
    duration(size, "--max-delay", "default 15 s; e.g. 31d", default=15, read=seconds)
    size.add_argument("--bits", type=int, help="instead of --max-delay")
    parser.add_argument("--unit-ms", type=int, default=1000, help="precision in milliseconds")
    parser.add_argument("--prefix", default="delay", help="what all names begin with")
    parser.add_argument("--queue-type", type=QueueType, choices=[*QueueType], default="quorum")
    parser.add_argument("--anchor", type=Anchor, choices=[*Anchor], default="right")
    parser.add_argument("--head", type=Head, choices=[*Head], default="#")
    parser.add_argument(
        "--unroutable", type=Unroutable, choices=[*Unroutable], default="park", help="at ingest"
    )
    text = "where messages lie when due; default zaqar=PREFIX.zaqar"
    repeated(parser, "--target", "DESTINATION=QUEUE", text, dest="destinations")
    parser.add_argument("--draining-bits", type=int, help="the number of bits before it grew")
    flag(parser, "--dry-run", "say what would be done")
    return parser


def _topology(arguments: argparse.Namespace) -> Topology:
    given = {field.name: getattr(arguments, field.name) for field in fields(Topology)}
    pairs = [text.partition("=") for text in arguments.destinations]
    if any(not sign for _, sign, _ in pairs):
        raise Invalid("--target is DESTINATION=QUEUE")
    given["destinations"] = {destination: queue for destination, _, queue in pairs} or None
    if arguments.bits is None:
        given["bits"] = bits_for(arguments.max_delay, unit_ms=arguments.unit_ms)
    return Topology(**given)


def _run(command: Command | str, arguments: argparse.Namespace) -> int:
    """Run a command; what speaks to a broker imports its libraries only now."""
    # The library logs what it also raises as an exception.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    try:
        topology = _topology(arguments)
        if isinstance(command, str):
            broker_commands = import_module("zaqar_lite.rabbitmq.broker_commands")
            return int(getattr(broker_commands, command)(arguments, topology))
        return command(arguments, topology)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("zaqar_lite"):
            raise
        text = f"this needs the package {error.name}: pip install 'zaqar-lite[rabbitmq]'"
        return explain(ImportError(text), DRIFT)
    except BrokenPipeError:
        raise  # `main` knows what to do
    except (ZaqarLiteError, OSError) as error:
        return explain(error, DRIFT if isinstance(error, Invalid) else FAILED)


def _plan(_: argparse.Namespace, topology: Topology) -> int:
    longest = in_seconds(topology.maximum, topology.unit_ms)
    say(
        f"{topology.bits} bits of {topology.unit_ms} ms: delays of 0..{longest} s, "
        f"{topology.queue_type} queues, {topology.anchor}-anchored keys",
        str(topology),
        "",
        f"{'exchange':<24}{'decides':>8}{'bindings':>10}  queue before it, and its time to live",
    )
    sources = [binding.source for binding in topology.bindings]
    say(f"{topology.ingest:<24}{topology.bits:>8}{sources.count(topology.ingest):>10}")
    for level in topology.levels:
        name = topology.level_exchange(level)
        wait = in_seconds(2**level, topology.unit_ms)
        before = f"{topology.level_queue(level)}, {wait} s"
        say(f"{name:<24}{level:>8}{sources.count(name):>10}  {before}")
    say(f"{topology.end:<24}{'-':>8}{sources.count(topology.end):>10}", "")
    for destination, queue in topology.targets.items():
        say(f"destination {destination!r} -> queue {queue}")
    say(f"no route -> queue {topology.parking}", f"never to be posted -> queue {topology.failed}")
    return OK


def _explain(arguments: argparse.Namespace, topology: Topology) -> int:
    path = topology.path(arguments.delay)
    units = topology.units(arguments.delay)
    exact = in_seconds(units, topology.unit_ms)
    say(
        f"delay        {exact} s = {units} units of {topology.unit_ms} ms = binary {units:b}",
        f"publish to   {topology.ingest}",
        f"routing key  {topology.routing_key(arguments.delay, arguments.destination)}",
        f"path         {len(path)} hops",
    )
    waited = 0
    for hop in path:
        waited += hop.wait_ms
        wait, until = in_seconds(hop.wait_ms, 1), in_seconds(waited, 1)
        say(f"  {hop.exchange} -> queue {hop.queue}, {wait} s (until {until} s)")
    last = f"{path[-1].queue}.done" if path else topology.ingest
    say(f"  {last} -> {topology.end} -> queue {topology.targets[arguments.destination]}")
    return OK


def _export(arguments: argparse.Namespace, topology: Topology) -> int:
    output: Path | None = arguments.output
    if arguments.format == "terraform":
        directory = output or Path("rabbitmq-delay")
        for name in exports.write_terraform(directory, topology, dry_run=arguments.dry_run):
            say(str(directory / name))
        return OK
    text: str = getattr(exports, arguments.format)(topology)
    if output is None:
        sys.stdout.write(text)
    else:
        if not arguments.dry_run:
            output.write_text(text, encoding="utf-8")
        say(str(output))
    return OK
