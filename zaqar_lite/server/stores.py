"""The part of the composition root that is about stores: the server's own, and its pools."""

from dataclasses import replace
from typing import NamedTuple

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Capability, StoreOptions
from zaqar_lite.service.pooling.drain import Drains, DrainWorker
from zaqar_lite.service.pooling.placement import Placements
from zaqar_lite.service.pooling.pooled_store import OpenConnections, PooledMessages
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry, StoreKind
from zaqar_lite.settings import Settings
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.registry import create_stores, find_driver


class Pooling(NamedTuple):
    """The store of a server with pools, and what manages its pools."""

    messages: PooledMessages
    registry: PoolRegistry
    placements: Placements
    drains: Drains


class Stores(NamedTuple):
    """The stores that services use.

    one_store  whether records and messages lie in the same store
    shared     whether other processes may use the stores too
    """

    messages: MessageStore
    management: ManagementStore
    one_store: bool
    shared: bool
    pools: Pooling | None


def make_stores(settings: Settings, clock: Clock) -> Stores:
    """Make the stores that the settings name, not yet opened.

    Raises:
        ConfigurationError: a URI or an option is wrong.
    """
    options = StoreOptions(
        idempotency_window_ms=settings.idempotency_window * 1000,
        max_idempotency_keys=settings.max_idempotency_keys,
        max_messages=settings.max_messages_per_queue,
        workers=settings.workers,
        extra=settings.store_options,
    )
    messages, management = create_stores(settings.store, clock=clock, options=options)
    one_store = settings.management_store in (None, settings.store)
    if not one_store and settings.management_store is not None:
        _, management = create_stores(settings.management_store, clock=clock, options=options)
    shared = Capability.SHARED in messages.capabilities or not one_store
    if not settings.pooling:
        return Stores(messages, management, one_store, shared, None)
    pools = _pooling(messages, management, clock, options, one_store=one_store)
    # The records of the queues in pools are not in the pools' stores.
    return Stores(pools.messages.as_store, management, one_store=False, shared=shared, pools=pools)


def _pooling(
    home: MessageStore,
    management: ManagementStore,
    clock: Clock,
    options: StoreOptions,
    *,
    one_store: bool,
) -> Pooling:
    """Put pools in front of the server's own store; pools get its limits.

    Of the server's options and a pool's own, its driver is given those that it has.
    """

    def make(pool: Pool) -> MessageStore:
        given = {**options.extra, **pool.options}
        own = {name: given[name] for name in find_driver(pool.uri).options if name in given}
        messages, _ = create_stores(
            pool.uri,
            clock=clock,
            options=replace(options, extra=own),
        )
        return messages

    def check(pool: Pool | None) -> StoreKind:
        # A store can keep a history only if it has the records of its queues too.
        if pool is None:
            lacks = () if one_store else (Capability.HISTORY,)
            return StoreKind("", home.capabilities.difference(lacks))
        driver, can = find_driver(pool.uri), make(pool).capabilities - {Capability.HISTORY}
        return StoreKind(driver.name, can, driver.options)

    registry = PoolRegistry(management, check)
    placements = Placements(management, registry, clock)
    pooled = PooledMessages(home, registry, placements, OpenConnections(make), clock)
    return Pooling(pooled, registry, placements, Drains(management, registry, clock))


def drainer_of(settings: Settings, pools: Pooling | None) -> DrainWorker | None:
    """Make the background work that drains pools; None on a server without pools."""
    if pools is None:
        return None
    return DrainWorker(pools.messages, pools.drains, settings.drain_wait)
