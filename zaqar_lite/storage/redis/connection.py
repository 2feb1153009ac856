"""The connection that the two stores of one URI share."""

import asyncio
import logging

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.redis.address import Address
from zaqar_lite.storage.redis.faults import Fault
from zaqar_lite.storage.redis.followups import FollowUps
from zaqar_lite.storage.redis.keys import EVERYWHERE
from zaqar_lite.storage.redis.link import Link
from zaqar_lite.storage.redis.router import make_router
from zaqar_lite.storage.redis.scripts import library

logger = logging.getLogger(__name__)
_LEAST_VERSION = (7, 0)


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
            if info.get("redis_mode") == "cluster":
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
        answers = await self.router.on_every_node(_ping)
        silent = [answer for answer in answers if isinstance(answer, Exception)]
        if len(silent) == len(answers):
            raise silent[0]
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
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value for name, _, value in lines}


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
