"""How much of its quotas a project uses."""

from collections.abc import Mapping

from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas.connected import Connected
from zaqar_lite.service.quotas.stock import Stock
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.waiting import Waiting

MOST_COUNTED = 10_000
"""The most subscriptions that are counted; a larger number is reported as this one."""


class Usage:
    """Add up what a project has."""

    def __init__(
        self,
        queues: Queues,
        stock: Stock,
        subscriptions: Subscriptions,
        waiting: Waiting,
        connected: Connected,
    ) -> None:
        self._connected = connected
        self._queues = queues
        self._stock = stock
        self._subscriptions = subscriptions
        self._waiting = waiting

    async def of(self, project: str) -> Mapping[str, int | None]:
        """What a project has; None for what is not known within a second.

        Requests that wait, and connections, are those of all processes that share the store, as
        each reported within 4 seconds; connections are counted only while any project has a
        quota of them.
        """
        counted = await self._stock.counted(project)
        return {
            "queues": await self._queues.count(project),
            "messages": None if counted is None else counted.messages,
            "bytes": None if counted is None else counted.bytes,
            "subscriptions": await self._subscriptions.room.count(project, MOST_COUNTED),
            "waiters": await self._waiting.total_of(project),
            "connections": await self._connected.total_of(project),
        }
