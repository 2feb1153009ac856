"""The sub-commands of `zaqar-lite delay` that speak to a broker."""

import argparse
import asyncio
import json
import logging
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TypeVar

from aio_pika.abc import AbstractConnection

from zaqar_lite.client import (
    AsyncClient,
    Auth,
    BadAnswer,
    Forbidden,
    KeystoneAuth,
    Refused,
    RetryPolicy,
    SignedAuth,
    Unauthenticated,
    ZaqarError,
)
from zaqar_lite.client.base_client import DEFAULT_URL
from zaqar_lite.commands import contexts
from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.rabbitmq import amqp, cancellations
from zaqar_lite.rabbitmq.commands import AMQP_URL, MANAGEMENT_URL, say
from zaqar_lite.rabbitmq.drift import Kind
from zaqar_lite.rabbitmq.management import Management
from zaqar_lite.rabbitmq.messages import for_zaqar
from zaqar_lite.rabbitmq.metrics import RelayMetrics, served
from zaqar_lite.rabbitmq.migrate import Migrated
from zaqar_lite.rabbitmq.migrate import migrate as move
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.relay import Relay, RelayOptions
from zaqar_lite.rabbitmq.topology import Topology, bits_for

T = TypeVar("T")


def apply(arguments: argparse.Namespace, topology: Topology) -> int:
    """Create what is missing; over the management API each change is printed.

    The exit code is 2 when delays are wrong all the same: a policy, a foreign binding, a consumer.
    """
    alone = arguments.amqp_url is not None and arguments.management_url is None
    if (arguments.via or ("amqp" if alone else "management")) == "amqp":
        if arguments.prune:
            raise Invalid("AMQP cannot list what is extra; --prune needs --via management")
        if not arguments.dry_run:
            _connected(arguments, lambda connection: amqp.declare(connection, topology))
        say(f"{'would declare' if arguments.dry_run else 'declared'} {topology}")
        return 0
    with Management(arguments.management_url or MANAGEMENT_URL, vhost=arguments.vhost) as broker:
        done = broker.apply(topology, prune=arguments.prune, dry_run=arguments.dry_run)
        left = [
            each
            for each in broker.verify(topology)
            if each.is_drift and each.kind is not Kind.PARKED and each not in done
        ]
    for each in done:
        say(f"{'+' if each.kind == 'missing' else '-'} {each.subject}")
    say(f"{len(done)} changes{', none made' if arguments.dry_run else ''}")
    for each in left:
        say(f"left: {each.kind} {each.subject}: {each.detail}")
    return 2 if left else 0


def _connected(
    arguments: argparse.Namespace, work: Callable[[AbstractConnection], Awaitable[T]]
) -> T:
    """Do something with a connection to the broker."""

    async def run() -> T:
        async with amqp.connected(arguments.amqp_url or AMQP_URL) as connection:
            return await work(connection)

    return asyncio.run(run())


def verify(arguments: argparse.Namespace, topology: Topology) -> int:
    """Print all differences from the topology; 2 if they may make delays wrong."""
    with Management(arguments.management_url or MANAGEMENT_URL, vhost=arguments.vhost) as broker:
        findings = broker.verify(topology)
    drift = any(each.is_drift for each in findings)
    if arguments.json:
        entries = [{**asdict(each), "drift": each.is_drift} for each in findings]
        say(json.dumps(entries, indent=2, default=dict))
    else:
        lines = [f"{each.kind:<10} {each.subject}: {each.detail}" for each in findings]
        say(*lines, "drift" if drift else "no drift")
    return 2 if drift else 0


def remove(arguments: argparse.Namespace, topology: Topology) -> int:
    """Delete the topology; a dry run lists the messages in it."""
    # The exchange that is made first goes last.
    if not _connected(arguments, lambda connection: amqp.is_there(connection, topology.parking)):
        say(f"nothing to remove: the broker has no topology {topology.prefix!r}")
        return 0
    if arguments.dry_run:
        waits = _connected(arguments, lambda connection: amqp.waiting(connection, topology))
        for name, count in waits.items():
            say(f"{count} messages wait in {name}")
    else:
        _connected(arguments, lambda broker: amqp.remove(broker, topology, force=arguments.force))
    say(f"{'would remove' if arguments.dry_run else 'removed'} {topology}")
    return 0


def migrate(arguments: argparse.Namespace, old: Topology) -> int:
    """Move the messages of one topology to another; 2 if some could not be moved."""
    unit_ms = arguments.to_unit_ms or old.unit_ms
    bits = arguments.to_bits or bits_for(arguments.to_max_delay, unit_ms=unit_ms)
    new = replace(old, prefix=arguments.to_prefix, bits=bits, unit_ms=unit_ms, draining_bits=None)
    if arguments.dry_run:
        waits = _connected(arguments, lambda connection: amqp.waiting(connection, old))
        levels = {old.level_queue(level) for level in old.levels}
        done = Migrated(sum(count for name, count in waits.items() if name in levels))
    else:
        done = _connected(arguments, lambda connection: move(connection, old, new))
    say(f"{'would move' if arguments.dry_run else 'moved'} {done.moved} messages to {new.ingest}")
    if done.left:
        say(f"left: {done.left} messages without an id or due-ms, or not for {new.ingest}")
    return 2 if done.left else 0


def publish(arguments: argparse.Namespace, topology: Topology) -> int:
    """Publish one message and print its id."""
    try:
        body = json.loads(sys.stdin.read() if arguments.body == "-" else arguments.body)
    except ValueError as error:
        raise Invalid(f"the body is not JSON: {error}") from error
    message_id = str(uuid.uuid4()) if arguments.message_id is None else arguments.message_id
    key = topology.routing_key(arguments.delay, arguments.destination)
    ttl, project = arguments.ttl, arguments.project
    message = for_zaqar(arguments.queue, body, message_id=message_id, ttl=ttl, project=project)

    async def work(connection: AbstractConnection) -> None:
        async with Publisher(connection, topology) as publisher:
            to = arguments.destination
            await publisher.publish(message, delay=arguments.delay, destination=to)

    if arguments.dry_run:
        say(f"would publish {message_id} to {topology.ingest} with key {key}")
    else:
        _connected(arguments, work)
        say(message_id)
    return 0


def cancel(arguments: argparse.Namespace, topology: Topology) -> int:
    """Cancel a waiting message."""
    message_id = arguments.message_id
    if not arguments.dry_run:
        _connected(arguments, lambda broker: cancellations.cancel(broker, topology, message_id))
    say(f"{'would cancel' if arguments.dry_run else 'cancelled'} {message_id}")
    return 0


def relay(arguments: argparse.Namespace, topology: Topology) -> int:
    """Relay until SIGTERM or SIGINT, then finish the posts in progress."""
    topology.routing_key(0, arguments.destination)  # Invalid where there is no such destination
    source = topology.targets[arguments.destination]
    try:
        place = contexts.client_options(vars(arguments))
        place["client_id"] = place["client_id"] and uuid.UUID(place["client_id"])
        auth: Auth | None = place["auth"]
        pool = AsyncClient(
            **place,
            connections=arguments.prefetch,
            retries=RetryPolicy(attempts=1),
            timeout=arguments.timeout,
        )
    except (ValueError, OSError, ZaqarError, ImportError) as error:
        raise Invalid(str(error)) from error
    if arguments.dry_run:
        cloud = "where the cloud says" if isinstance(auth, KeystoneAuth) else DEFAULT_URL
        say(f"would relay queue {source} to {place['url'] or cloud}")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

    async def run() -> RelayMetrics:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pool)
            await _check(pool, auth)
            running = Relay(
                arguments.amqp_url or AMQP_URL,
                topology,
                sharing(pool, auth),
                destination=arguments.destination,
                options=RelayOptions(prefetch=arguments.prefetch),
            )
            if arguments.metrics_port is not None:
                page = served(running.metrics, arguments.metrics_port)
                say(f"metrics on http://127.0.0.1:{await stack.enter_async_context(page)}/metrics")
            say(f"relaying queue {source} to {pool.url}")
            await running.run(stop)
        return running.metrics

    done = asyncio.run(run())
    say(f"stopped: {done.posts['201']} posted, {done.parked.total()} parked")
    return 0


async def _check(pool: AsyncClient, auth: Auth | None) -> None:
    """Check once that we may log in, and that a Zaqar answers; all due messages would be parked.

    Raises:
        Invalid: something else answers at the address, or it refuses this client.
        Unavailable: Keystone refuses, or is away.
    """
    try:
        if auth is not None:
            await asyncio.to_thread(auth.login)
    except ZaqarError as error:
        raise Unavailable(f"no login: {error}") from error
    if isinstance(auth, SignedAuth):
        return  # a permission is for one queue alone
    try:
        await pool.ping()
    except (Refused, BadAnswer) as error:
        raise Invalid(f"{pool.url} does not answer as Zaqar does: {error}") from error
    except ZaqarError as error:
        logging.getLogger(__name__).warning("Zaqar is away, waiting for it: %s", error)


def sharing(pool: AsyncClient, auth: Auth | None = None) -> Callable[[str | None], AsyncClient]:
    """Return a maker of clients, one for each project, that share one pool of connections.

    A client holds its headers and nothing else, so making one for every message is cheap, and
    no number of projects can pile up. With `auth`, which must be logged in, None means its own
    project. A login has no other, so "default" means it, too, and it raises, for a message of

        another project: Forbidden, since it would be stored under the wrong one
        any project, after a signed permission has expired: Unauthenticated
    """
    own = None if auth is None else (auth.headers() or {}).get("X-Project-ID")
    end = datetime.max.replace(tzinfo=UTC)
    if isinstance(auth, SignedAuth):
        end = datetime.fromisoformat(auth.signed.expires)
        end = end if end.tzinfo else end.replace(tzinfo=UTC)

    def client_for(project: str | None) -> AsyncClient:
        if own is not None and project not in {own, "default", None}:
            why = f"the message is of project {project!r}, the relay's login of {own!r}"
            raise Forbidden("Another project", why, status=403)
        if end <= datetime.now(UTC):
            raise Unauthenticated("The signed permission has expired", str(end), status=401)
        client = AsyncClient(
            pool.url,
            project=project,
            client_id=pool.client_id,
            auth=auth,
            retries=RetryPolicy(attempts=1),
        )
        client.transport = pool.transport
        return client

    return client_for
