"""The connection that the two stores of one URI share."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.redis.address import Address
from zaqar_lite.storage.redis.faults import Fault, refused
from zaqar_lite.storage.redis.keys import EVERYWHERE
from zaqar_lite.storage.redis.link import Link
from zaqar_lite.storage.redis.router import make_router
from zaqar_lite.storage.redis.scripts import LIBRARIES, library, library_name

logger = logging.getLogger(__name__)
_LEAST_VERSION = (7, 0)
_PATIENCE = 0.5
"""Seconds for which an answer waits for its follow-up, if another node is slow."""


class FollowUps:
    """Work that follows a commit: it starts before the answer is sent, and can't fail or delay it.

    The committed step has stored what is to be done (a queue's `due`, its outbox, an intent), so
    the sweep does whatever fails here.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[bool]] = set()

    async def run(
        self, work: Coroutine[Any, Any, object], patience: float | None = _PATIENCE
    ) -> bool:
        """Do the work for up to `patience` seconds, then in the background; return if it is done.

        Without `patience` wait until the work has ended.
        """
        task = self.begin(work)
        await asyncio.wait({task}, timeout=patience)
        return task.done() and task.result()

    def begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[bool]:
        """Do the work in the background; the task returns whether it succeeded."""
        task = asyncio.create_task(_survive(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel what still runs; the sweep will do it."""
        await asyncio.sleep(0)  # let new tasks start: one that has not can't clean up
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _survive(work: Coroutine[Any, Any, object]) -> bool:
    try:
        await work
    except Unavailable as exc:
        logger.warning("the sweep will finish what a call began: %s", exc)
    except Exception:
        # A bug here must not take the answer of what was committed with it.
        logger.exception("what follows a commit failed")
    else:
        return True
    return False


class Connection:
    """Links to Redis, open as long as one of its stores is."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.router = make_router(address, clock)
        self.follow_ups = FollowUps()
        self._users: set[object] = set()
        self._checking = asyncio.Lock()
        self._checked = False
        self._silent = 0

    async def open(self, user: object) -> None:
        """Connect and check every node; idempotent.

        Raises:
            ConfigurationError: Redis is too old, or would evict messages when it is full.
            Unavailable: Redis does not answer.
        """
        async with self._checking:
            if not self._checked:
                try:
                    await self._check_nodes()
                except BaseException:  # nobody closes what was not opened
                    await self.router.close()
                    raise
                self._checked = True
        self._users.add(user)

    async def _check_nodes(self) -> None:
        for info in await self.router.on_every_node(_info):
            if isinstance(info, Exception):
                raise info
            _check(info)
            if info.get("cluster_enabled") == "1":  # `redis_mode` is not in Valkey 8
                self.router.keep_to_slots()

    async def close(self, user: object) -> None:
        """Close the links when the last user goes; idempotent."""
        self._users.discard(user)
        if not self._users:
            self._checked = False
            await self.follow_ups.close()
            await self.router.close()

    async def ping(self) -> None:
        """Return if any node answers: one silent node must not stop the service for all queues.

        Raises:
            Unavailable: no node answers.
        """
        try:
            answers = await self.router.on_every_node(_ping)
            silent = [answer for answer in answers if isinstance(answer, Exception)]
            if len(silent) == len(answers):
                raise silent[0]
        except ConfigurationError as exc:
            raise refused(exc) from exc
        if len(silent) != self._silent:
            self._silent = len(silent)
            answering = len(answers) - len(silent)
            logger.warning("%d of %d Redis nodes answer %s", answering, len(answers), silent)


async def _ping(link: Link) -> object:
    return await link.send("PING")


async def _info(link: Link) -> dict[str, str] | Fault:
    reply, published, _ = await asyncio.gather(
        link.send("INFO"),
        link.send("SPUBLISH", EVERYWHERE.key("readiness"), 0),
        link.send("FUNCTION", "LOAD", library()),  # a full Redis takes no library any more
    )
    if isinstance(published, Fault) and published.code == "NOPERM":
        # A script would end half-way, where it tells what became ready.
        raise ConfigurationError(
            "The Redis user may not publish on the channels of the store: add &zl:* to its "
            f"permissions (ACL SETUSER). Redis says: {published}"
        )
    if isinstance(reply, Fault):
        return reply
    await _forget_other_versions(link)
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value for name, _, value in lines}


async def _forget_other_versions(link: Link) -> None:
    """Delete the libraries of other versions: each slows all operations down (15 of them by 20 %).

    A server of another version that still runs loads its own again when it next needs it.
    """
    found = await link.send("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARIES}*")
    if not isinstance(found, Fault):
        names = [description[description.index(b"library_name") + 1] for description in found]
        others = [name for name in names if name.decode() != library_name()]
        await asyncio.gather(*(link.send("FUNCTION", "DELETE", name) for name in others))


def _check(info: dict[str, str]) -> None:
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < _LEAST_VERSION:
        raise ConfigurationError(f"Redis {version} is too old: the store needs 7.0 or later.")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        raise ConfigurationError(
            f"Redis would throw messages away when it is full (maxmemory-policy {policy}): set "
            "maxmemory-policy noeviction, or no maxmemory."
        )
