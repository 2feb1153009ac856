"""Pools and flavors: as they are kept, and making, showing, changing and deleting them."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.addresses import HIDDEN, shown, without_secrets
from zaqar_lite.domain.errors import (
    ConfigurationError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
)
from zaqar_lite.domain.models import Capability, QueueRef
from zaqar_lite.service.records import Kind, Most, all_records
from zaqar_lite.storage.management import ManagementStore

MAX_WEIGHT = (1 << 32) - 1
_SECRET = re.compile("pass|secret|token|key|credential|auth", re.IGNORECASE)
_URI = re.compile("://|@")
MAX_TEXT = 255
"""Characters of a URI, and of the names of pools and flavors."""


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool; of weight 0 it gets no new queues. `options` are its driver's settings by name."""

    name: str
    uri: str
    weight: int
    flavor: str | None = None
    options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        """Show no credentials."""
        return f"Pool({self.name!r}, {self.shown_uri!r}, {self.weight!r}, {self.flavor!r})"

    @property
    def shown_uri(self) -> str:
        """The URI without its credentials, which nobody is told."""
        return shown(self.uri)

    @property
    def shown_options(self) -> Mapping[str, Any]:
        """The options without what may be a secret, by its name or as a URI with credentials."""
        return {name: _shown(name, value) for name, value in self.options.items()}


def _shown(name: str, value: object) -> object:
    if _SECRET.search(name):
        return HIDDEN
    if isinstance(value, str) and _URI.search(value):
        return shown(value)
    if isinstance(value, list | dict):  # upstream has plain values only
        return HIDDEN
    return value


class Flavor(msgspec.Struct, frozen=True):
    """A named set of pools of a project's choice, and what the first of them is said to do."""

    name: str
    pools: tuple[str, ...]
    capabilities: tuple[str, ...] = ()


logger = logging.getLogger(__name__)
POOL, FLAVOR = "pool", "flavor"
FRESH = 2.0
"""Seconds for which a process goes by what it has read of pools and of the catalogue."""
MAX_POOLS, MAX_FLAVORS = 100, 1_000
"""The pools that there may be, and the flavors of a project."""
_CAPABILITIES = {
    "mongodb": ("FIFO", "CLAIMS", "DURABILITY", "AOD", "HIGH_THROUGHPUT"),
    "redis": ("FIFO", "CLAIMS", "AOD", "HIGH_THROUGHPUT"),
    "swift": (),
    "memory": ("FIFO", "CLAIMS", "HIGH_THROUGHPUT"),
    "embedded": ("FIFO", "CLAIMS", "DURABILITY", "HIGH_THROUGHPUT"),
    "opendata": ("FIFO", "CLAIMS", "DURABILITY", "HIGH_THROUGHPUT"),
}
"""Upstream's names for what a driver does; ours for the drivers that upstream does not have."""

Holds = Callable[[str], Awaitable[QueueRef | None]]
"""Answers a queue that lies in a pool, if any does."""


class StoreKind(NamedTuple):
    """The driver of a store by its name, what it can do, and the options that it has."""

    name: str
    capabilities: Collection[Capability] = frozenset()
    options: Collection[str] = ()


UNUSABLE = StoreKind("")
"""Stands for a store that can't be made, because of its address or a package that is missing."""
Check = Callable[[Pool | None], StoreKind]
"""Tells of a pool's store, or of the server's own; connects to nothing. Or ConfigurationError."""


class PoolRegistry:
    """Keep pools, which are the server's, and flavors, which are a project's."""

    def __init__(self, management: ManagementStore, check: Check) -> None:
        self._check = check
        most = Most(MAX_POOLS, Invalid, "pools")
        self.kind = Kind(management, POOL, "Pool", Pool, most)
        most = Most(MAX_FLAVORS, Invalid, "flavors in a project")
        self._flavors = Kind(management, FLAVOR, "Flavor", Flavor, most)
        self._known: dict[str, Pool] = {}
        self._read_at = float("-inf")

    def keep_in(self, management: ManagementStore) -> None:
        """Read and write pools there: in a store that seals them, where the server has keys."""
        self.kind.management = self._flavors.management = management

    async def known(self) -> Mapping[str, Pool]:
        """The pools by name, at most FRESH seconds old."""
        if time.monotonic() - self._read_at >= FRESH:
            await self.pools()
        return self._known

    async def pools(self) -> Mapping[str, Pool]:
        """The pools by name, as they are now."""
        begun = time.monotonic()
        self._known = {pool.name: pool for pool in await self.kind.page("", None, None)}
        self._read_at = begun
        return self._known

    async def put_pool(self, pool: Pool) -> Sequence[str]:
        """Make a pool, or put it in place of the one of its name; nothing is connected to.

        Returns:
            The names of its options that its driver does not have. They are kept, and not used.

        Raises:
            Invalid: the URI is none of a driver's, or of one with other capabilities than the
                flavor's pools; or there are too many pools.
            Conflict: another pool has the URI.
        """
        await self.kind.write("", pool.name, partial(self._checked, pool))
        return self._unknown_options(pool)

    async def _checked(self, pool: Pool, before: Pool | None) -> Pool:
        """Refuse a pool that may not be put in place of the one `before`."""
        driver = self._driver(pool)
        moves = before is None or (before.uri, before.flavor) != (pool.uri, pool.flavor)
        for other in (await self.pools()).values():
            if other.name != pool.name and other.uri == pool.uri:
                raise Conflict(f"The pool {other.name!r} has this URI already.")
            # A flavor may have been given pools of two kinds, to drain one into the other.
            if moves and pool.flavor is not None and other.flavor == pool.flavor:
                self._check_alike(other, driver)
        return pool

    def _unknown_options(self, pool: Pool) -> Sequence[str]:
        self._read_at = float("-inf")
        known = self._driver(pool).options
        return [name for name in pool.options if name not in known]

    async def change_pool(
        self, name: str, changes: Mapping[str, Any]
    ) -> tuple[Pool, Sequence[str]]:
        """Change what is named of a pool; a masked URI or option, as it was read, stays what it is.

        Returns:
            The pool, and what `put_pool` says of its options.

        Raises:
            NotFound: there is none of this name.
            Invalid: the URI is none of a driver's, or of one with other capabilities than before.
            Conflict: another pool has the URI.
        """

        async def change(pool: Pool) -> Pool:
            changed, told = dict(changes), pool.shown_options
            if changed.get("uri") == pool.shown_uri:
                del changed["uri"]
            if changed.get("flavor") == "":
                changed["flavor"] = None
            if "options" in changed:
                changed["options"] = {
                    name: pool.options[name] if name in told and value == told[name] else value
                    for name, value in changed["options"].items()
                }
            new = msgspec.structs.replace(pool, **changed)
            if "uri" in changed:
                self._check_alike(pool, self._driver(new))
            return await self._checked(new, pool)

        pool = await self.kind.change("", name, change)
        return pool, self._unknown_options(pool)

    async def delete_pool(self, name: str, holds: Holds) -> None:
        """Delete a pool that `holds` no queues; no error when it is not there.

        Raises:
            Forbidden: it is the last of its flavor, or queues lie in it.
        """
        pools = await self.pools()
        pool = pools.get(name)
        if pool is None:  # unless it is damaged: nothing reaches its store until it is made anew
            await self.kind.delete("", name)
            return
        await self._check_empty(name, holds)
        async for record in all_records(self._flavors.management, FLAVOR):
            flavor = self._flavors.decode(record)
            if self._pools_of(flavor, pools) == [name]:
                raise Forbidden(
                    f"The pool {name} is the only one of the flavor {flavor.name}: delete the "
                    "flavor first, or give it another pool."
                )
        await self.kind.delete("", name)
        self._read_at = float("-inf")
        try:
            await self._check_empty(name, holds)
        except Forbidden:  # a queue was placed in it meanwhile
            await self.kind.put("", name, pool, None)
            raise

    async def list_flavors(self, project: str, after: str | None, limit: int) -> Sequence[Flavor]:
        """Some flavors of a project by name, with the pools that they have now."""
        pools = await self.known()
        return [self._shown(one, pools) for one in await self._flavors.page(project, after, limit)]

    async def flavor(self, project: str, name: str) -> Flavor:
        """Show a flavor with the pools that it has now.

        Raises:
            NotFound: the project has none of this name.
        """
        return self._shown(await self._flavors.get(project, name), await self.pools())

    async def put_flavor(self, project: str, name: str, pools: Sequence[str]) -> Flavor:
        """Make a flavor of these pools, or put it in place of the one of its name.

        Its pools serve queues without a flavor no more; pools that it had do again.

        Raises:
            Invalid: there is no such pool, or the project has too many flavors.
            Unavailable: others change the flavor all the time.
        """
        known = await self.pools()
        for one in pools:
            if one not in known:
                raise Invalid(f"Pool {one} does not exist")
        driver = self._driver(known[pools[0]]).name
        flavor = Flavor(name, tuple(dict.fromkeys(pools)), _CAPABILITIES.get(driver, ()))
        await self._flavors.write(project, name, lambda _: flavor)
        await self._set_flavor(project, name, flavor.pools)
        return flavor

    async def delete_flavor(self, project: str, name: str) -> None:
        """Delete a flavor; its pools serve queues without one again. No error when it is gone."""
        await self._flavors.delete(project, name)
        await self._set_flavor(project, name, ())

    async def fitting(self, project: str, flavor: str | None) -> Sequence[Pool]:
        """The pools that may get a new queue of a flavor, or of none.

        Raises:
            NotFound: the project has no such flavor.
            Unavailable: no pool of the flavor takes new queues.
        """
        if flavor is None:
            pools = (await self.pools()).values()
            return [pool for pool in pools if pool.weight and pool.flavor is None]
        names = (await self.flavor(project, flavor)).pools
        known = self._known
        found = [known[name] for name in names if name in known and known[name].weight]
        if not found:
            raise Unavailable(f"No pool of the flavor {flavor} takes new queues.")
        return found

    async def missing(self, name: str | None, metadata: Mapping[str, Any]) -> str | None:
        """What metadata ask for that the store of a pool can't do; None: it can do all."""
        asked = {key: need for key, need in rules.NEEDED.items() if metadata.get(key) is not None}
        if not asked:
            return None
        pool = None if name is None else (await self.known()).get(name)
        if name is not None and pool is None:
            return None
        can = self._usable(pool).capabilities
        return next((key for key, need in asked.items() if need not in can), None)

    def _usable(self, pool: Pool | None) -> StoreKind:
        """Tell of the store of a pool, or of the server's own; UNUSABLE where it can't be made."""
        try:
            return self._check(pool)
        except ConfigurationError as exc:
            name, uri = ("", "") if pool is None else (pool.name, pool.uri)
            logger.warning("the pool %r can't be used: %s", name, without_secrets(str(exc), uri))
            return UNUSABLE

    async def _set_flavor(self, project: str, flavor: str, names: Sequence[str]) -> None:
        """Note in the pools which flavor they serve.

        What a flavor of this name lists in another project goes on to serve it.
        """
        kept: set[str] = set()
        async for record in all_records(self._flavors.management, FLAVOR):
            if record.name == flavor and record.project != project:
                kept.update(self._flavors.decode(record).pools)

        def change(pool: Pool) -> Pool:
            if pool.name in names:
                return msgspec.structs.replace(pool, flavor=flavor)
            is_left = pool.flavor == flavor and pool.name not in kept
            return msgspec.structs.replace(pool, flavor=None) if is_left else pool

        for pool in (await self.pools()).values():
            if change(pool) != pool:
                with suppress(NotFound):
                    await self.kind.change("", pool.name, change)
        self._read_at = float("-inf")

    @staticmethod
    def _pools_of(flavor: Flavor, pools: Mapping[str, Pool]) -> Sequence[str]:
        """The pools of a flavor: those that it lists, and those that say that they are of it."""
        listed = [name for name in flavor.pools if name in pools and pools[name].flavor is not None]
        others = [pool.name for pool in pools.values() if pool.flavor == flavor.name]
        return list(dict.fromkeys((*listed, *others)))

    def _shown(self, flavor: Flavor, pools: Mapping[str, Pool]) -> Flavor:
        return Flavor(flavor.name, tuple(self._pools_of(flavor, pools)), flavor.capabilities)

    def _driver(self, pool: Pool) -> StoreKind:
        try:
            return self._check(pool)
        except ConfigurationError as exc:
            why = without_secrets(str(exc), pool.uri)
            raise Invalid(f"cannot connect to {shown(pool.uri)}: {why}") from exc

    def _check_alike(self, pool: Pool, driver: StoreKind) -> None:
        """Refuse a driver that can't do what the pool's can: queues lie or are placed there.

        Nothing is refused for a pool whose own store can't be made: nobody uses it.
        """
        has = self._usable(pool).name
        if has and _CAPABILITIES.get(has) != _CAPABILITIES.get(driver.name):
            raise Invalid(
                f"Unable to create pool: {driver.name} has other capabilities than {has}, the "
                f"driver of the pool {pool.name}."
            )

    @staticmethod
    async def _check_empty(name: str, holds: Holds) -> None:
        if queue := await holds(name):
            raise Forbidden(
                f"Queues lie in the pool {name}, {queue.name!r} for one: set its weight to 0 and "
                f"empty it by POST /v2/pools/{name}/drain, or delete them."
            )
