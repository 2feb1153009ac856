"""Apply a topology to a broker over AMQP, which can't list what is on the broker.

The library is aio-pika: of the two that are kept up it is the typed one, and its publisher
confirms can be awaited many at a time, which the publisher and the relay live on.
"""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity, ChannelPreconditionFailed
from aiormq import exceptions
from pamqp import decode
from yarl import URL

from zaqar_lite.domain.errors import Conflict, Forbidden, Unavailable
from zaqar_lite.rabbitmq.topology import Topology

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0  # seconds


def _timestamp(value: bytes) -> tuple[int, Any]:
    """Read an instant; one that Python has none for, such as in microseconds, is left out."""
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError):
        return 8, None


def _short_str(value: bytes) -> tuple[int, str]:
    """Read a short text, such as a message's id; bytes that are not UTF-8 are written as such."""
    end = value[0] + 1
    return end, value[1:end].decode("utf-8", "backslashreplace")


# A message that the library can't read ends the connection, and is the first one on the next.
decode.METHODS |= {"timestamp": _timestamp, "shortstr": _short_str}
decode.TABLE_MAPPING[b"T"] = _timestamp
# What the library raises when the broker goes away, or has gone.
LOST = (AMQPError, OSError, TimeoutError, exceptions.ChannelInvalidStateError)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AbstractConnection]:
    """Open a connection to the broker for a `with` block; it is not restored when it breaks.

    Raises:
        Forbidden: the broker refuses the user, or has no such virtual host.
        Unavailable: nobody answers there, or not with AMQP.
    """
    try:
        connection = await aio_pika.connect(url, timeout=CONNECT_TIMEOUT)
    except LOST as error:
        where = URL(url).with_user(None)
        if isinstance(error, exceptions.ProbableAuthenticationError):
            text = f"the broker at {where} refuses the user or the password (--amqp-url)"
            raise Forbidden(text) from error
        if "OpenOk" in str(error):  # all that the library says of it
            text = f"the broker at {where} has no such virtual host, or the user may not use it"
            raise Forbidden(text) from error
        raise Unavailable(f"no connection to the broker at {where}: {error}") from error
    try:
        yield connection
    finally:
        await connection.close()


async def is_there(connection: AbstractConnection, exchange: str) -> bool:
    """Tell whether the broker has an exchange."""
    async with connection.channel() as channel:  # a missing exchange closes it
        try:
            await channel.get_exchange(exchange, ensure=True)
        except ChannelNotFoundEntity:
            return False
    return True


async def declare(connection: AbstractConnection, topology: Topology) -> None:
    """Declare every entity of a topology; what is there already stays as it is.

    Exchanges come first, the parking one before all, so that whatever the bindings already let in
    cannot be lost.

    Raises:
        Conflict: an entity of that name exists with other properties, or more bits.
        Forbidden: the user may not declare it.
    """
    await _refuse_larger(connection, topology)
    async with connection.channel() as channel:
        for exchange in topology.exchanges:
            declaring = channel.declare_exchange(
                exchange.name, exchange.type, durable=True, arguments=dict(exchange.arguments)
            )
            await _translated(declaring, f"exchange {exchange.name}")
        for queue in topology.queues:
            opening = channel.declare_queue(
                queue.name, durable=True, arguments=dict(queue.arguments)
            )
            await _translated(opening, f"queue {queue.name}")
        for each in topology.bindings:
            find = channel.get_queue if each.destination_type == "queue" else channel.get_exchange
            end = await find(each.destination, ensure=False)
            binding = end.bind(each.source, each.routing_key)
            await _translated(binding, f"binding {each.source} -> {each.destination}")


async def _refuse_larger(connection: AbstractConnection, topology: Topology) -> None:
    if await is_there(connection, topology.level_exchange(topology.bits)):
        raise topology.too_small()


async def _translated(work: Awaitable[T], what: str) -> T:
    """Await a declaration; translate the broker's refusal into our errors."""
    try:
        return await work
    except ChannelPreconditionFailed as error:
        raise Conflict(
            f"{what} exists with other properties, which RabbitMQ cannot change: {error}. "
            "Remove the topology, or choose another prefix"
        ) from error
    except exceptions.ChannelAccessRefused as error:
        raise Forbidden(f"{what}: {error}") from error


async def waiting(connection: AbstractConnection, topology: Topology) -> dict[str, int]:
    """Return queue -> messages ready in it, for the queues that exist and are not empty.

    AMQP does not count messages held by a consumer, nor those a quorum queue is handing on.
    """
    found: dict[str, int] = {}
    for queue in topology.queues:
        async with connection.channel() as channel:  # a missing queue closes the channel
            try:
                declared = await channel.declare_queue(queue.name, passive=True)
            except ChannelNotFoundEntity:
                continue
            if count := declared.declaration_result.message_count:
                found[queue.name] = count
    return found


async def remove(
    connection: AbstractConnection, topology: Topology, *, force: bool = False
) -> None:
    """Delete every entity of a topology; what is gone already is no error.

    The ingest exchange goes first, so that nothing new can enter while the rest is looked at; it
    comes back if something had entered in the meantime.

    Raises:
        Conflict: messages wait in a queue, and `force` was not given, or the broker's topology has
            more bits. Nothing was removed.
    """
    # The messages of a larger one end where these do.
    await _refuse_larger(connection, topology)
    if not force:
        _refuse_full(await waiting(connection, topology))
    async with connection.channel() as channel:
        await channel.exchange_delete(topology.ingest)
        if not force:
            try:
                _refuse_full(await waiting(connection, topology))
            except Conflict:
                await declare(connection, topology)
                raise
        for queue in topology.queues:
            await channel.queue_delete(queue.name)
        await channel.queue_delete(topology.cancelled)
        for exchange in reversed(topology.exchanges):
            await channel.exchange_delete(exchange.name)


def _refuse_full(counts: dict[str, int]) -> None:
    if counts:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise Conflict(f"messages wait in {listed}; let them leave, or remove them with --force")
