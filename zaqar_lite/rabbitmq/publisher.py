"""Publish messages that the broker keeps until they are due.

A publish is persistent, mandatory and confirmed: when it returns, the first level queue has the
message on disk. The message id is required, because it is what removes duplicates at the end.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Self

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aio_pika.exceptions import DeliveryError, PublishError

from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.rabbitmq.amqp import LOST, is_there
from zaqar_lite.rabbitmq.messages import DUE, LIMITS, copy_of, for_zaqar
from zaqar_lite.rabbitmq.topology import Topology, in_seconds

CONFIRM_TIMEOUT = 30.0  # seconds


class Publisher:
    """Publishes into one topology, over a connection that the caller keeps.

    Any number of tasks may publish at once. Use it in an `async with`.

    Args:
        connection: to the broker.
        topology: the one that was applied there; if that has grown since, the block learns it.
        maximum: the longest delay to accept, in seconds, where that is less than the topology's;
            while a topology grows, the old maximum.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        topology: Topology,
        *,
        maximum: float | None = None,
    ) -> None:
        self.topology = topology
        self._connection = connection
        self._maximum = topology.maximum if maximum is None else topology.units(maximum)
        self._channel: AbstractChannel | None = None
        self._ingest: AbstractExchange | None = None

    async def __aenter__(self) -> Self:
        """Open the channel, with confirms, and with returned messages as errors.

        It learns from the broker how many digits a key has there: one with fewer would be parked,
        with a confirm. `topology` then says so; the maximum stays, because a topology that is
        growing delivers longer delays twice. One with more digits than the broker has levels is
        read modulo 2^N there, so that its message would come too early.

        Raises:
            Unavailable: the broker has no such topology, or one of fewer bits.
        """
        topology, bits = self.topology, self.topology.bits
        while await is_there(self._connection, topology.level_exchange(bits)):
            bits += 1
        for exchange in (topology.level_exchange(bits - 1), topology.ingest):
            if not await is_there(self._connection, exchange):
                why = f"the broker has no {exchange}: is the topology applied, with {bits} bits?"
                raise Unavailable(why)
        self.topology = replace(topology, bits=bits)
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._ingest = await channel.get_exchange(topology.ingest, ensure=False)
        self._channel = channel
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the channel, not the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._ingest = None

    async def publish(
        self,
        message: aio_pika.Message,
        *,
        delay: float = 0,
        at: datetime | None = None,
        destination: str = "zaqar",
    ) -> None:
        """Publish a message that is due in `delay` seconds, or `at` an instant.

        What is sent is a persistent copy with the header `due-ms`, without the `x-death` headers of
        an earlier trip (`copy_of`). An instant in the past is due now.

        Raises:
            Invalid: the delay is none, is negative or beyond the maximum; the message has no id,
                or has an `expiration`, which would end its waits early; `at` has no time zone.
            Unavailable: the broker did not confirm in time, or had no queue for it. Publish again
                under the same message id.
        """
        if at is not None:
            if at.tzinfo is None:
                raise Invalid("a time to deliver at needs a time zone")
            delay = max(0.0, at.timestamp() - time.time())
        units = self.topology.units(delay)
        if units > self._maximum:
            most = in_seconds(self._maximum, self.topology.unit_ms)
            raise Invalid(f"a delay of {delay} s is beyond this publisher's maximum, {most} s")
        if not message.message_id:
            raise Invalid("a message needs a message_id: redeliveries are told apart by it")
        if message.expiration is not None:
            raise Invalid("expiration would end the wait early; give a ttl to its destination")
        key = self.topology.routing_key(delay, destination)
        due = math.ceil(time.time() * 1000) + units * self.topology.unit_ms
        made = copy_of(message, **{DUE: due})
        made.user_id = message.user_id  # the broker checks that it is this connection's user
        await self._send(made, key)

    async def _send(self, message: aio_pika.Message, key: str) -> None:
        if self._ingest is None:
            raise Unavailable("the publisher is not open; use it in an `async with`")
        try:
            await self._ingest.publish(message, key, mandatory=True, timeout=CONFIRM_TIMEOUT)
        except PublishError as error:
            raise Unavailable(
                f"the broker has no queue for {key!r}: is the topology applied, with as many bits?"
            ) from error
        except DeliveryError as error:
            raise Unavailable(f"the broker refused {message.message_id!r}: {error}") from error
        except LOST as error:
            why = f"{message.message_id!r} may or may not be stored: {error!r}"
            raise Unavailable(why) from error

    async def publish_to_zaqar(
        self,
        queue: str,
        body: object,
        *,
        message_id: str,
        delay: float = 0,
        at: datetime | None = None,
        ttl: int = LIMITS.default_message_ttl,
        project: str = "default",
        headers: Mapping[str, str] | None = None,
        destination: str = "zaqar",
    ) -> None:
        """Publish a message that the relay posts to a Zaqar queue when it is due.

        The message's arguments are `for_zaqar`'s, those of its way `publish`'s; so are the errors.
        """
        message = for_zaqar(
            queue, body, message_id=message_id, ttl=ttl, project=project, headers=headers
        )
        await self.publish(message, delay=delay, at=at, destination=destination)
