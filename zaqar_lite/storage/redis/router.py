"""Choose the link for a call: to the one server, to the sentinels' master, or by slot.

Each node has a link for short calls, and one for long ones, few at a time (`limiter.py`).
The next call opens a lost link again. A call that may have been carried out is repeated only if its
script is safe to repeat (`repeatable`).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisError

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.redis.address import Address
from zaqar_lite.storage.redis.faults import (
    SWITCHES_NODE,
    ConnectionLost,
    Fault,
    explain,
    refused,
    unavailable,
)
from zaqar_lite.storage.redis.keys import Keys
from zaqar_lite.storage.redis.limiter import LONG_AT_ONCE, FairTurns
from zaqar_lite.storage.redis.link import Link, connect
from zaqar_lite.storage.redis.scripts import function, library

logger = logging.getLogger(__name__)
L = TypeVar("L", bound=Link)
T = TypeVar("T")
Word = str | bytes | int
Lane = tuple[Any, bool]
"""A node, and whether a link to it is for what takes long; short calls would wait behind that."""
_MAX_HOPS = 5
_FULL_FOR = 60.0
"""Seconds for which Redis counts as full after it had no memory for a post."""
_AGAIN = object()
"""Stands for a reply where the call should be tried again: another node has the slot."""


class Router(ABC):
    """Run scripts and commands on the node that has the keys."""

    is_one_server = True
    """Whether all keys are on one server, so that operations may register queues for the sweep."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._links: dict[Lane, Link] = {}
        self._turns: defaultdict[Any, FairTurns] = defaultdict(lambda: FairTurns(LONG_AT_ONCE))
        self._shared: dict[object, asyncio.Task[Any]] = {}
        self._full_until = 0.0

    @property
    def is_full(self) -> bool:
        """Whether a node refused something a short while ago, having no memory for it."""
        return monotonic() < self._full_until

    def keep_to_slots(self) -> None:
        """Stop operations from registering queues: in a cluster that index is in another slot."""
        self.is_one_server = False

    async def run(
        self,
        operation: str,
        keys: Keys,
        *words: Word,
        repeatable: bool = False,
        long_for: str | None = None,
    ) -> Any:  # noqa: ANN401 - a reply is what the operation made it
        """Do an operation of the library on keys; one that takes long says for which project.

        Raises:
            Unavailable: Redis cannot serve now; a write may or may not have happened.
        """
        given = keys.on_one_server if self.is_one_server else keys.in_slot
        call = "FCALL", function(operation), len(given), *given, self._clock.offset_ms, *words
        return await self._call(keys.slot, call, repeatable, long_for)

    async def command(self, slot: int, *words: Word, long_for: str | None = None) -> Any:  # noqa: ANN401 - any reply
        """Run a command that is safe to repeat, on the node of a slot.

        Raises:
            Unavailable: Redis cannot serve now.
        """
        return await self._call(slot, words, repeatable=True, long_for=long_for)

    async def _call(
        self,
        slot: int,
        words: tuple[Word, ...],
        repeatable: bool,
        long_for: str | None = None,
    ) -> Any:  # noqa: ANN401
        was_sent = False
        for hop in range(_MAX_HOPS):
            node = None
            try:
                node = await self.node_of(slot)
                if long_for is None:
                    reply = await _send(await self._link(node), words)
                else:
                    async with self._turns[node].turn(long_for):
                        reply = await _send(await self._link(node, is_long=True), words)
            except ConfigurationError as exc:
                raise refused(exc) from exc
            except ConnectionLost as lost:
                was_sent = was_sent or lost.sent
                if node is not None:
                    self.leave(node)
                if hop == 0 and (repeatable or not lost.sent):
                    continue
                raise unavailable(lost, was_sent=was_sent) from None
            if isinstance(reply, Fault):
                reply = await self._redirected(reply, node, slot, words)
            if isinstance(reply, Fault):
                if reply.code == "OOM":
                    self._note_full(node)
                raise explain(reply)
            if reply is not _AGAIN:
                return reply
        raise Unavailable("The Redis cluster sends calls in a circle; it may be moving slots.")

    def _note_full(self, node: Any) -> None:  # noqa: ANN401
        if not self.is_full:
            logger.error("Redis at %s has used up its maxmemory, and refuses posts", node)
        self._full_until = monotonic() + _FULL_FOR

    async def _redirected(self, fault: Fault, node: Any, slot: int, words: tuple[Word, ...]) -> Any:  # noqa: ANN401
        """Act on an error that tells of the node; return the reply, or `_AGAIN`."""
        if fault.code in SWITCHES_NODE:
            for lane in _lanes(node):
                if lane in self._links:
                    self._links[lane].close(str(fault))
            self.leave(node)
        return fault

    @abstractmethod
    async def node_of(self, slot: int) -> Any:  # noqa: ANN401 - an address, by the kind of router
        """The node that serves a slot.

        Raises:
            ConnectionLost: nobody can tell.
        """

    async def connect_to(self, node: Any, make: Callable[[float], L]) -> L:  # noqa: ANN401
        """Open another link to a node, which its caller keeps and closes.

        Raises:
            ConnectionLost: nobody answers there.
            ConfigurationError, Unavailable: Redis refuses.
        """
        return await connect(node, self._address, make)

    def leave(self, node: Any) -> None:  # noqa: ANN401
        """Forget a node's links that were lost or lead to a replica, unless they were replaced."""
        for lane in _lanes(node):
            link = self._links.get(lane)
            if link is not None and not link.is_up:
                del self._links[lane]

    async def _link(self, node: Any, *, is_long: bool = False) -> Link:  # noqa: ANN401
        lane = node, is_long
        link = self._links.get(lane)
        if link is not None and link.is_up:
            return link
        return await self.once(lane, partial(self._open, lane))

    async def once(self, name: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work once for all who ask for it at a time; it ends with the router, not with them."""
        task = self._shared.get(name)
        if task is None:
            task = self._shared[name] = asyncio.create_task(work())
            task.add_done_callback(partial(self._forget_shared, name))
        # Shielded: a caller that goes away must not take the work of the others with it.
        return cast(T, await asyncio.shield(task))

    def _forget_shared(self, name: object, task: asyncio.Task[Any]) -> None:
        del self._shared[name]
        if not task.cancelled():
            task.exception()  # who waited may have gone: nobody else would look at it

    async def _open(self, lane: Lane) -> Link:
        link = self._links[lane] = await self.connect_to(lane[0], Link)
        return link

    async def nodes(self) -> list[Any]:
        """All nodes that calls may go to."""
        return [await self.node_of(0)]

    async def on_every_node(self, act: Callable[[Link], Awaitable[Any]]) -> list[Any]:
        """Run `act` on a link to each node; return its replies, and the error of one that fails.

        Raises:
            ConfigurationError, Unavailable: no node can be asked.
        """
        try:
            nodes = await self.nodes()
        except ConnectionLost as lost:
            raise unavailable(lost, was_sent=False) from None
        return await asyncio.gather(*(self._ask_node(node, act) for node in nodes))

    async def _ask_node(self, node: Any, act: Callable[[Link], Awaitable[Any]]) -> Any:  # noqa: ANN401
        try:
            link = await self._link(node)
            reply = await act(link)
        except ConnectionLost as lost:
            self.leave(node)
            return unavailable(lost, was_sent=lost.sent)
        except (ConfigurationError, Unavailable) as exc:
            return exc
        return explain(reply) if isinstance(reply, Fault) else reply

    async def close(self) -> None:
        """Close all links, also those that are being opened."""
        tasks = list(self._shared.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            link.close()
        self._links.clear()


class SingleRouter(Router):
    """One server, by host and port or by a unix socket."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._node = address.path or address.hosts[0]

    async def node_of(self, slot: int) -> Any:  # noqa: ANN401
        """The server."""
        return self._node


class SentinelRouter(Router):
    """The master that the sentinels name; they are asked again whenever its link was lost."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._master: tuple[str, int] | None = None

    async def node_of(self, slot: int) -> Any:  # noqa: ANN401
        """The master."""
        if self._master is None:
            self._master = await self.once("master", self._ask)
        return self._master

    async def _ask(self) -> tuple[str, int]:
        """Ask the sentinels for the master."""
        timeout = self._address.timeout
        options = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        sentinel = Sentinel(list(self._address.hosts), **options)  # type: ignore[no-untyped-call]
        try:
            host, port = await sentinel.discover_master(self._address.service)
        except RedisError as exc:
            raise ConnectionLost(f"no sentinel names a master: {exc}", sent=False) from exc
        finally:
            for client in sentinel.sentinels:
                await client.aclose()
        return str(host), int(port)

    def leave(self, node: Any) -> None:  # noqa: ANN401
        """Forget the master, so that the sentinels are asked again."""
        super().leave(node)
        self._master = None


class ClusterRouter(Router):
    """A cluster: the node by slot, from the cluster's own map."""

    is_one_server = False

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._map: dict[int, tuple[str, int]] = {}
        self._outsider: tuple[str, int] | None = None
        """The last node that was cut off from the others, and may know an old map."""

    async def node_of(self, slot: int) -> Any:  # noqa: ANN401
        """The master that the cluster's map names."""
        # What was read counts, even if another call has lost its node since and forgot the map.
        node = self._map.get(slot) or (await self.once("map", self._read_map)).get(slot)
        if node is None:
            raise ConnectionLost(f"nobody serves slot {slot} of the cluster", sent=False)
        return node

    async def nodes(self) -> list[Any]:
        """All masters."""
        known = self._map or await self.once("map", self._read_map)
        return list(dict.fromkeys(known.values()))

    def leave(self, node: Any) -> None:  # noqa: ANN401
        """Forget a node and the map, which may have changed."""
        super().leave(node)
        self._map = {}

    async def _read_map(self) -> dict[int, tuple[str, int]]:
        """Ask the known nodes, then the seeds, which node serves which slot."""
        lost = ConnectionLost("the cluster's URI names no node", sent=False)
        known = dict.fromkeys([node for node, _ in self._links] + [*self._address.hosts])
        for node in sorted(known, key=lambda node: bool(node == self._outsider)):
            try:
                link = await self._link(node)
                reply = await link.send("CLUSTER", "SLOTS")
            except ConnectionLost as exc:
                lost = exc
                continue
            if isinstance(reply, Fault):
                lost = ConnectionLost(str(reply), sent=False)
                continue
            self._map = {
                slot: ((master[0] or b"").decode() or node[0], master[1])
                for first, last, master, *_ in reply
                for slot in range(first, last + 1)
            }
            return self._map
        raise lost

    async def _redirected(self, fault: Fault, node: Any, slot: int, words: tuple[Word, ...]) -> Any:  # noqa: ANN401
        if fault.code == "CLUSTERDOWN":
            self._outsider, self._map = node, {}
        if fault.code not in ("MOVED", "ASK"):
            return await super()._redirected(fault, node, slot, words)
        code, _, place = str(fault).split(" ")
        host, _, port = place.rpartition(":")
        node = host or node[0], int(port)
        if code == "MOVED":
            self._map = {} if len(self._map) < 16_384 else {**self._map, slot: node}
            return _AGAIN
        try:
            return await _send(await self._link(node), words, asks=True)
        except ConnectionLost as lost:
            raise unavailable(lost, was_sent=lost.sent) from None


async def _send(link: Link, words: tuple[Word, ...], *, asks: bool = False) -> Any:  # noqa: ANN401
    """Send a call, after ASKING where told; give a node the library if it has none."""
    if not asks:
        reply = await link.send(*words)
        if not (isinstance(reply, Fault) and reply.is_unknown_function):
            return reply
        # A new server, or FUNCTION FLUSH; nothing was done.
    calls = ("FUNCTION", "LOAD", library()), *((("ASKING",),) if asks else ()), words
    loaded, *_, reply = await asyncio.gather(*(link.send(*call) for call in calls))  # in one write
    return loaded if isinstance(reply, Fault) and reply.is_unknown_function else reply


def _lanes(node: Any) -> tuple[Lane, Lane]:  # noqa: ANN401
    return (node, False), (node, True)


def make_router(address: Address, clock: Clock) -> Router:
    """Make the router for an address."""
    kinds = {"sentinel": SentinelRouter, "cluster": ClusterRouter}
    return kinds.get(address.kind, SingleRouter)(address, clock)
