"""Signals that messages became ready, which scripts publish on a channel for each queue.

A process has one connection for signals to each node that has a watched queue, and subscribes to
the channels of watched queues only. The channels are sharded, so that in a cluster the signals of a
queue stay on its shard. Signals are hints: those that are sent while a connection is lost are lost.
A lost connection is opened anew as long as a queue is watched. Whenever Redis confirms a
subscription, those who wait already look once more, for they may have missed signals. Because of
that, and because a script publishes in the step that makes messages ready, it is enough that those
who wait look every `POLL_INTERVAL_MS`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.redis.faults import ConnectionLost, Fault
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.link import Link
from zaqar_lite.storage.redis.router import Router
from zaqar_lite.storage.watchers import Listener, Watchers

logger = logging.getLogger(__name__)
POLL_INTERVAL_MS = 30_000
_PATIENCE = 1.0
"""Seconds for which `watch` waits until Redis confirms the subscription."""
_LOOK_EVERY = 5.0
"""Seconds after which a silent connection is tested."""
_RETRY_AFTER = 0.5


class Subscription(Link):
    """A connection that gets signals between the replies to its calls."""

    def __init__(
        self, timeout: float, tell: Callable[[bytes, bytes], None], lost: asyncio.Event
    ) -> None:
        """Call `tell(channel, text)` for each signal; set `lost` when the connection ends."""
        super().__init__(timeout)
        self._tell, self._lost = tell, lost
        self._leaving: Counter[bytes] = Counter()
        self.channels: set[bytes] = set()
        """Channels whose subscription Redis has confirmed."""

    def leave(self, channel: bytes) -> None:
        """Unsubscribe; a failure is ignored."""
        if channel in self.channels and self.is_up:
            self.channels.discard(channel)
            self._leaving[channel] += 1
            with suppress(ConnectionLost):
                self.send("SUNSUBSCRIBE", channel).add_done_callback(_ignore)

    def _fail(self, reason: str) -> None:
        was_up = self.is_up
        super()._fail(reason)
        if was_up:  # else it was refused, or told already: who connects anew must pause first
            self._lost.set()

    def _resolve(self, reply: Any) -> None:  # noqa: ANN401 - any reply
        if not self._is_signal(reply):
            super()._resolve(reply)

    def _is_signal(self, reply: Any) -> bool:  # noqa: ANN401 - any reply
        if not isinstance(reply, list) or len(reply) != 3:
            return False
        kind, channel, text = reply
        if kind == b"smessage":
            self._tell(channel, text)
            return True
        if kind == b"ssubscribe":
            self.channels.add(channel)
            self._tell(channel, b"-1")
        elif kind == b"sunsubscribe":
            if not self._leaving[channel]:
                # The cluster has given the queue's slot to another node.
                self.channels.discard(channel)
                return True
            self._leaving[channel] -= 1
            if not self._leaving[channel]:
                del self._leaving[channel]
        return False


class Readiness:
    """Watch queues, and call the listener when their messages become ready."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._watchers = Watchers[QueueRef]()
        self._queues: dict[bytes, QueueRef] = {}
        self._subscriptions: dict[Any, Subscription] = {}
        self._opening = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    async def watch(self, queue: QueueRef, listener: Listener) -> Callable[[], None]:
        """Subscribe to a queue; return when Redis confirms it, or after a second."""
        waits = False

        def hear(count: int) -> None:
            if waits:  # until then it has missed nothing
                listener(count)

        end, channel = self._watchers.add(queue, hear), _channel(queue)
        self._queues[channel] = queue
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="readiness")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._subscribe(channel, set())
        except BaseException:
            self._end(channel, end)
            raise
        waits = True
        return partial(self._end, channel, end)

    def _end(self, channel: bytes, end: Callable[[], None]) -> None:
        """End one watch; with the last one of a queue its subscription ends."""
        end()
        if self._queues[channel] not in self._watchers:
            del self._queues[channel]
            self._leave(channel)

    def _leave(self, channel: bytes) -> None:
        for subscription in self._subscriptions.values():
            subscription.leave(channel)

    async def close(self) -> None:
        """Close all connections."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()

    def _hear(self, channel: bytes, text: bytes) -> None:
        queue = self._queues.get(channel)
        if queue is not None:
            self._watchers.tell(queue, int(text))
        else:  # its watch was given up before Redis had confirmed it
            self._leave(channel)

    async def _keep(self) -> None:
        """Keep the channels of all watched queues subscribed, as long as there are any."""
        while self._queues:
            away: set[Any] = set()
            for channel in list(self._queues):
                if channel in self._queues and None not in away:
                    await self._subscribe(channel, away)
            self._lost.clear()
            for subscription in self._subscriptions.values():
                with suppress(ConnectionLost):  # a silent connection is found out, and closed
                    subscription.send("PING").add_done_callback(_ignore)
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_AFTER if away else _LOOK_EVERY):
                    await self._lost.wait()

    async def _subscribe(self, channel: bytes, away: set[Any]) -> None:
        """Subscribe on the node that has the queue now.

        A node that does not answer joins those that are `away`, which are not asked again; None
        stands for whoever knows the nodes.
        """
        node = reply = None
        try:
            node = await self._router.node_of(keys_of(self._queues[channel]).slot)
            if node in away:
                return
            subscription = await self._open(node)
            for other in self._subscriptions.values():
                if other is not subscription:
                    other.leave(channel)
            if channel not in subscription.channels:
                reply = await subscription.send("SSUBSCRIBE", channel)
        except (ConnectionLost, ConfigurationError, Unavailable) as exc:
            logger.debug("no signals from Redis for now: %s", exc)
            away.add(node)
        if isinstance(reply, Fault):
            logger.debug("no signals from Redis for now: %s", reply)
            away.add(node)
            if reply.code == "MOVED":
                self._router.leave(node)

    async def _open(self, node: Any) -> Subscription:  # noqa: ANN401 - as the router has it
        async with self._opening:
            found = self._subscriptions.get(node)
            if found is None or not found.is_up:
                found = await self._router.connect_to(
                    node, lambda timeout: Subscription(timeout, self._hear, self._lost)
                )
                self._subscriptions[node] = found
            return found


def _channel(queue: QueueRef) -> bytes:
    return keys_of(queue).key("readiness")


def _ignore(reply: asyncio.Future[Any]) -> None:
    """Read the result of a call that nobody awaits, so that asyncio does not warn about it."""
    if not reply.cancelled():
        reply.exception()
