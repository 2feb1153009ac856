"""The sub-commands of `zaqar-lite delay` that speak to a broker."""

import argparse
import asyncio
import json
import logging
import signal
import sys
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict

from zaqar_lite.client import AsyncClient, RetryPolicy
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.management import Management
from zaqar_lite.rabbitmq.metrics import served
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.relay import Relay, RelayOptions
from zaqar_lite.rabbitmq.topology import Topology

Say = Callable[..., None]


def apply(arguments: argparse.Namespace, topology: Topology, say: Say) -> int:
    """Make what is missing; over the management API each change is printed."""
    if arguments.via == "amqp":
        if arguments.prune:
            raise Invalid("AMQP cannot list what is extra; --prune needs --via management")
        if not arguments.dry_run:
            asyncio.run(_declare(arguments.amqp_url, topology))
        say(
            f"{'would declare' if arguments.dry_run else 'declared'} "
            f"{len(topology.exchanges)} exchanges, {len(topology.queues)} queues, "
            f"{len(topology.bindings)} bindings"
        )
        return 0
    with Management(arguments.management_url, vhost=arguments.vhost) as management:
        done = management.apply(topology, prune=arguments.prune, dry_run=arguments.dry_run)
    for each in done:
        say(f"{'+' if each.kind == 'missing' else '-'} {each.subject}")
    say(f"{len(done)} changes{', none made' if arguments.dry_run else ''}")
    return 0


async def _declare(url: str, topology: Topology) -> None:
    async with amqp.connected(url) as connection:
        await amqp.declare(connection, topology)


def verify(arguments: argparse.Namespace, topology: Topology, say: Say) -> bool:
    """Print what is not as it should be; True when delays may be wrong because of it."""
    with Management(arguments.management_url, vhost=arguments.vhost) as management:
        findings = management.verify(topology)
    if arguments.json:
        entries = [{**asdict(each), "drift": each.is_drift} for each in findings]
        say(json.dumps(entries, indent=2, default=dict))
    else:
        for each in findings:
            say(f"{each.kind:<10} {each.subject}: {each.detail}")
        say("drift" if any(each.is_drift for each in findings) else "no drift")
    return any(each.is_drift for each in findings)


def remove(arguments: argparse.Namespace, topology: Topology, say: Say) -> int:
    """Delete the topology; a dry run says what waits in it."""

    async def work() -> None:
        async with amqp.connected(arguments.amqp_url) as connection:
            if not arguments.dry_run:
                await amqp.remove(connection, topology, force=arguments.force)
            else:
                for name, count in (await amqp.waiting(connection, topology)).items():
                    say(f"{count} messages wait in {name}")

    asyncio.run(work())
    say(
        f"{'would remove' if arguments.dry_run else 'removed'} "
        f"{len(topology.exchanges)} exchanges and {len(topology.queues)} queues"
    )
    return 0


def publish(arguments: argparse.Namespace, topology: Topology, say: Say) -> int:
    """Publish one message and print its id."""
    try:
        body = json.loads(sys.stdin.read() if arguments.body == "-" else arguments.body)
    except ValueError as error:
        raise Invalid(f"the body is not JSON: {error}") from error
    message_id = arguments.message_id or str(uuid.uuid4())
    if not arguments.ttl.is_integer():
        raise Invalid(f"a ttl is a whole number of seconds, not {arguments.ttl}")
    key = topology.routing_key(arguments.delay, arguments.destination)

    async def work() -> None:
        async with (
            amqp.connected(arguments.amqp_url) as connection,
            Publisher(connection, topology) as publisher,
        ):
            await publisher.publish_to_zaqar(
                arguments.queue,
                body,
                message_id=message_id,
                delay=arguments.delay,
                ttl=int(arguments.ttl),
                project=arguments.project,
                destination=arguments.destination,
            )

    if arguments.dry_run:
        say(f"would publish {message_id} to {topology.ingest} with key {key}")
    else:
        asyncio.run(work())
        say(message_id)
    return 0


def relay(arguments: argparse.Namespace, topology: Topology, say: Say) -> int:
    """Relay until SIGTERM or SIGINT, then finish what is under way."""
    if arguments.destination not in topology.targets:
        raise Invalid(f"there is no destination {arguments.destination!r} here")
    if arguments.prefetch < 1:
        raise Invalid("--prefetch is at least 1")
    source = topology.targets[arguments.destination]
    if arguments.dry_run:
        say(f"would relay queue {source} to {arguments.zaqar_url}")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the relay says what it means
    asyncio.run(_relay(arguments, topology, say))
    return 0


async def _relay(arguments: argparse.Namespace, topology: Topology, say: Say) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            AsyncClient(arguments.zaqar_url, connections=arguments.prefetch)
        )
        client_for = sharing(pool, arguments.client_id)
        running = Relay(
            arguments.amqp_url,
            topology,
            client_for,
            destination=arguments.destination,
            options=RelayOptions(prefetch=arguments.prefetch),
        )
        if arguments.metrics_port is not None:
            port = await stack.enter_async_context(served(running.metrics, arguments.metrics_port))
            say(f"metrics on http://127.0.0.1:{port}/metrics")
        say(f"relaying queue {topology.targets[arguments.destination]} to {arguments.zaqar_url}")
        await running.run(stop)
    posted = running.metrics.posts["201"]
    say(f"stopped: {posted} posted, {running.metrics.parked.total()} parked")


def sharing(pool: AsyncClient, client_id: str | None = None) -> Callable[[str], AsyncClient]:
    """Return a maker of clients, one for each project, that share one pool of connections.

    A client holds its headers and nothing else, so making one for every message is cheap, and
    no number of projects can pile up.
    """
    identity = client_id or str(uuid.uuid4())

    def client_for(project: str) -> AsyncClient:
        client = AsyncClient(
            pool.url, project=project, client_id=identity, retries=RetryPolicy(attempts=1)
        )
        client.transport = pool.transport
        return client

    return client_for
