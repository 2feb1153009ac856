"""Signals that messages became ready, which scripts publish on a channel for each queue.

A process has one connection for signals to each node that has a watched queue, and subscribes to
the channels of watched queues only. The channels are sharded, so that in a cluster the signals of a
queue stay on its shard. Signals are hints: those that are sent while a connection is lost are lost.
A lost connection is opened anew as long as a queue is watched, and then those who wait look once
more. Because of that, and because a script publishes in the step that makes messages ready, it is
enough that those who wait look every `POLL_INTERVAL_MS`.
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

    def __init__(self, timeout: float, tell: Callable[[bytes, bytes], None]) -> None:
        """Call `tell(channel, text)` for each signal."""
        super().__init__(timeout)
        self._tell = tell
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
        self._known: set[bytes] = set()
        """Channels that were subscribed: signals are missed until they are so again."""
        self._late: set[bytes] = set()
        """Channels that are watched already, although Redis has not confirmed them."""

    async def watch(self, queue: QueueRef, listener: Listener) -> Callable[[], None]:
        """Subscribe to a queue; return when Redis confirms it, or after a second."""
        end, channel = self._watchers.add(queue, listener), _channel(queue)
        self._queues[channel] = queue
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="readiness")
        is_made = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    is_made = await self._subscribe(channel, set())
        except BaseException:
            self._end(channel, end)
            raise
        if not is_made and channel in self._queues:
            self._late.add(channel)
        return partial(self._end, channel, end)

    def _end(self, channel: bytes, end: Callable[[], None]) -> None:
        """End one watch; with the last one of a queue its subscription ends."""
        end()
        if self._queues[channel] not in self._watchers:
            del self._queues[channel]
            self._known.discard(channel)
            self._late.discard(channel)
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

    async def _subscribe(self, channel: bytes, away: set[Any]) -> bool:
        """Subscribe on the node that has the queue now; return whether that succeeded.

        After a lost or late subscription tell those who wait to look again: signals may be missing.
        A node that does not answer joins those that are `away`, which are not asked again; None
        stands for whoever knows the nodes.
        """
        node = None
        try:
            node = await self._router.node_of(keys_of(self._queues[channel]).slot)
            if node in away:
                return False
            subscription = await self._open(node)
            for other in self._subscriptions.values():
                if other is not subscription:
                    other.leave(channel)
            is_lost, reply = False, None
            if channel not in subscription.channels:
                is_lost = channel in self._known
                reply = await subscription.send("SSUBSCRIBE", channel)
        except (ConnectionLost, ConfigurationError, Unavailable) as exc:
            logger.debug("no signals from Redis for now: %s", exc)
            away.add(node)
            return False
        if isinstance(reply, Fault):
            logger.debug("no signals from Redis for now: %s", reply)
            away.add(node)
            if reply.code == "MOVED":
                self._router.leave(node)
            return False
        if channel not in self._queues:  # nobody watches it any more
            subscription.leave(channel)
            return True
        self._known.add(channel)
        if is_lost or channel in self._late:
            self._late.discard(channel)
            self._hear(channel, b"-1")
        return True

    async def _open(self, node: Any) -> Subscription:  # noqa: ANN401 - as the router has it
        async with self._opening:
            found = self._subscriptions.get(node)
            if found is None or not found.is_up:
                found = await self._router.connect_to(
                    node, lambda timeout: Subscription(timeout, self._hear)
                )
                found.when_lost(self._lost.set)
                self._subscriptions[node] = found
            return found


def _channel(queue: QueueRef) -> bytes:
    return keys_of(queue).key("readiness")


def _ignore(reply: asyncio.Future[Any]) -> None:
    """Read the result of a call that nobody awaits, so that asyncio does not warn about it."""
    if not reply.cancelled():
        reply.exception()
