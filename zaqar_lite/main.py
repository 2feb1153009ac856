"""The composition root: settings -> stores -> services -> application, and the lifespan."""

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from zaqar_lite import __version__
from zaqar_lite.api.app import HttpOptions, Services, build_app
from zaqar_lite.api.application import Application
from zaqar_lite.api.request import Route
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.subscriptions import refused_schemes
from zaqar_lite.server.authentication import authentication, trusted_proxies
from zaqar_lite.server.loading import load, signing_keys
from zaqar_lite.server.logs import request_traces
from zaqar_lite.server.policy_file import PolicyFile
from zaqar_lite.server.stores import Pooling, drainer_of, make_stores
from zaqar_lite.server.transports import guard_of, webhooks_and_mail
from zaqar_lite.service.audit import make_trail
from zaqar_lite.service.claims import Claims
from zaqar_lite.service.delivery.attempt import DeliverySender
from zaqar_lite.service.delivery.attempt_log import AttemptLog
from zaqar_lite.service.delivery.confirmation import Confirmation
from zaqar_lite.service.delivery.deliveries import Deliveries
from zaqar_lite.service.delivery.inspection import DeliveryInspection
from zaqar_lite.service.delivery.internal_targets import SCHEME, ConnectedSubscribers, QueueTarget
from zaqar_lite.service.delivery.outbox import Outbox
from zaqar_lite.service.event_streams import EventStreams
from zaqar_lite.service.health import Health, Readiness
from zaqar_lite.service.identity.authentication import Authenticator
from zaqar_lite.service.identity.authorization import Authorizer, Defaults
from zaqar_lite.service.identity.keys import AdminKey, Keys
from zaqar_lite.service.identity.revalidation import Revalidation
from zaqar_lite.service.identity.trusts import Trusts
from zaqar_lite.service.janitor import Janitor
from zaqar_lite.service.jobs.bulk import Bulk
from zaqar_lite.service.jobs.jobs import Jobs
from zaqar_lite.service.jobs.runner import JobRunner
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.metrics.instrumented_store import instrumented
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.metrics.queue_depths import QueueDepths
from zaqar_lite.service.metrics.shared_counters import MetricFamilies, Place, SharedCounters
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.presigned_urls import Keyring, PresignedUrls, Revocations
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas.concurrency_limits import (
    ConcurrencyLeases,
    ConcurrencyLimit,
    ConnectionLimits,
)
from zaqar_lite.service.quotas.quota_usage import MessageQuota, QuotaUsage
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.rate_limits import RateLimits, SharedRateLimits
from zaqar_lite.service.routing import Router
from zaqar_lite.service.schedules.schedules import Scheduler, Schedules
from zaqar_lite.service.startup import Startup
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics
from zaqar_lite.settings import Settings
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.ui.page import Page

if TYPE_CHECKING:
    from zaqar_lite.service.encryption.encryption_keys import EncryptionKeys

_SWEEP_INTERVAL = 1.0
"""Seconds that the sweep pauses when it has nothing left to do."""
_DISABLE_AFTER = 432_000
"""Seconds with nothing but failures after which a subscription is disabled."""
_IN_PROCESS = ("memory", "embedded")
"""The schemes of stores that are asked without waiting."""


def create_app(
    settings: Settings | None = None, place: Place | None = None, *, limits: Limits | None = None
) -> Application:
    """Make the ASGI application (`uvicorn --factory zaqar_lite.main:create_app`).

    `place` is where this process counts, where several are one server; `limits` go before those of
    the settings.

    Raises:
        ConfigurationError: the settings or the store's URI are wrong.
    """
    settings = settings or load(environment=os.environ)
    clock = Clock(offset_file=settings.clock_offset_file)
    messages, management, one_store, shared, pools = make_stores(settings, clock)
    stores, encryption_keys = (messages, management), _encryption_keys(settings, management, clock)
    if encryption_keys is not None:
        from zaqar_lite.service.encryption.sealed_stores import sealing  # noqa: PLC0415 - its library

        management = sealing(management, encryption_keys)
    keys = Keys(management, clock) if "keys" in settings.providers else None
    identity, connections, trusts = authentication(settings, keys, management, clock)
    limits = limits or settings.limits()
    quotas = Quotas(management, settings.default_quota, clock, shared=shared)
    message_quota = MessageQuota(messages, management, quotas.of, shared=shared)
    leases = ConcurrencyLeases(management, workers=settings.workers) if shared else None
    families, counters = MetricFamilies(), SharedCounters(place)
    services = _services(
        settings,
        messages,
        management,
        clock,
        keys=keys,
        identity=identity,
        trusts=trusts,
        quotas=quotas,
        message_quota=message_quota,
        seats=ConcurrencyLimit if leases is None else leases.of,
        one_store=one_store,
        limits=limits,
        counted=instrumented(messages, families, counters.row),
        pools=pools,
        encryption_keys=encryption_keys,
    )
    queue_depths = QueueDepths(*stores, counters, interval=settings.count_interval)
    store = settings.store.partition(":")[0]
    metrics = Metrics(families, counters, queue_depths, clock, version=__version__, store=store)
    long_polling = services.long_polling
    metrics.gauges["disk_is_low"] = lambda: messages.condition().is_low
    metrics.gauges["log_bytes"] = lambda: messages.condition().log_bytes
    metrics.gauges["waiters"] = lambda: (
        long_polling.count - long_polling.count_of(DELIVERIES_PROJECT)
    )
    services.queues.recent.flows = counters.row.flows
    services.deliveries.on_outcome = metrics.delivered
    services.deliveries.dead_deliveries.on_disabled = metrics.disabled
    janitor = Janitor(
        messages,
        management,
        services.queues,
        services.policies,
        interval=_SWEEP_INTERVAL,
        note=metrics.swept,
    )
    traces = request_traces(settings)
    page = Page(authenticates=bool(settings.providers)) if settings.shows_page else None
    startup = Startup(
        stores,
        (
            *(janitor, services.deliveries, services.connected_subscribers, services.queues.recent),
            *(quotas, message_quota),
            leases,
            services.trail,
            SharedRateLimits(services.rates, management, share=1 / settings.workers)
            if management.shares_rates
            else None,
            JobRunner(services.jobs, clock, lambda: metrics.asked),
            drainer_of(settings, pools, management, clock, services.policies.turns),
            Scheduler(
                services.schedules, messages, clock, window_ms=settings.idempotency_window * 1000
            ),
            *connections,
            services.revalidation,
            traces,
            metrics,
        ),
        _prepare(settings, keys, quotas),
    )
    options = HttpOptions(
        version=__version__,
        limits=limits,
        any_client_id=settings.client_id_uuid_safe == "off",
        hosts=settings.hosts,
        origins=settings.origins,
        proxies=trusted_proxies(settings),
        admin_mode=settings.admin_mode,
        checksum=settings.enable_checksum,
        access_log=settings.access_log,
        answers_at_once=store in _IN_PROCESS,
    )
    readiness = Readiness(
        messages, startup.check, settings.data_directory if settings.needs_free_disk else None
    )
    app = build_app(
        services, options, startup.running, startup.check, readiness=readiness, metrics=metrics
    )
    app.adopt_quotas = quotas.adopt
    if traces is not None:
        app.traces = traces
    if settings.policy_file is not None:
        app.reread = _policy(settings.policy_file, services.authorizer, app.routes).read
        app.reread()()
    if page is not None:
        page.api = app
        app.page = page
    return app


def _policy(path: Path, authorizer: Authorizer, routes: Iterable[Route]) -> PolicyFile:
    """The operator's own rules, over the defaults of all routes."""
    rules = [route.access for route in routes if route.access.rule is not None]
    defaults = {str(access.rule): authorizer.default_rule(access.verb) for access in rules}
    return PolicyFile(path, defaults, authorizer.adopt)


def _prepare(
    settings: Settings, keys: Keys | None, quotas: Quotas
) -> Callable[[], Awaitable[object]]:
    """Prepare the stores before the first request."""
    path = settings.admin_key_file or settings.data_directory / "admin.key"

    async def prepare() -> None:
        await quotas.load()
        if keys is not None:
            await AdminKey(path, keys).ensure()

    return prepare


def _services(
    settings: Settings,
    messages: MessageStore,
    management: ManagementStore,
    clock: Clock,
    *,
    keys: Keys | None,
    identity: Authenticator | None,
    trusts: Trusts | None,
    quotas: Quotas,
    message_quota: MessageQuota,
    seats: Callable[[str], ConcurrencyLimit],
    one_store: bool,
    limits: Limits,
    counted: MessageStore,
    pools: Pooling | None,
    encryption_keys: "EncryptionKeys | None",
) -> Services:
    """Make the services; those that serve requests use `counted`, the store that counts calls."""
    policies = Policies(management, limits, checked=one_store)
    if pools is not None:
        pools.registry.keep_in(management)
    # Deliveries keep what they send sealed, so they see the store as it is.
    opened = counted if encryption_keys is None else _opened(counted, encryption_keys)
    queues = Queues(
        management,
        messages,
        policies,
        limits,
        quotas.of,
        encrypts=encryption_keys is not None,
        placements=None if pools is None else pools.placements,
    )
    router = Router(management, limits)
    outbox = Outbox(policies, clock)
    service = Messages(
        opened,
        queues,
        policies,
        router,
        outbox,
        limits=limits,
        clock=clock,
        message_quota=message_quota,
        encryption_keys=encryption_keys,
    )
    claims = Claims(opened, queues, policies, limits)
    long_polling = LongPolling(
        messages,
        most=limits.max_waiters,
        most_per_project=limits.max_waiters_per_project,
        quota_of=quotas.of,
        seats=seats("waiters"),
    )
    presigned_urls = PresignedUrls(
        Keyring(*signing_keys(settings)),
        Revocations(management),
        max_expires=limits.signed_url_max_expires,
    )
    subscriber_cache = SubscriberCache(management)
    subscriptions = Subscriptions(
        management,
        queues,
        policies,
        subscriber_cache,
        confirmations=Confirmation(messages, presigned_urls, clock, public_url=settings.public_url)
        if settings.require_confirmation
        else None,
        limits=limits,
        clock=clock,
        refused=refused_schemes(mail=settings.smtp_host is not None, trusts=trusts is not None),
        quota_of=quotas.of,
        left=(lambda _: None) if trusts is None else trusts.left,
    )
    connection_limits = ConnectionLimits(quotas, seats("connections"))
    rates = RateLimits(quotas, share=1.0 if management.shares_rates else 1 / settings.workers)
    quotas.changed = rates.refresh
    connected_subscribers = ConnectedSubscribers(messages, long_polling, encryption_keys)
    guard = guard_of(settings)
    transports = {
        **webhooks_and_mail(settings, trusts, guard),
        "queue": QueueTarget(service, clock),
        SCHEME: connected_subscribers,
    }
    sender = DeliverySender(
        transports, clock, has_ended=subscriber_cache.has_ended, refusal=guard.refusal
    )
    log = AttemptLog(management, clock)
    deliveries = Deliveries(
        messages,
        management,
        queues,
        subscriptions,
        subscriber_cache=subscriber_cache,
        long_polling=long_polling,
        sender=sender,
        log=log,
        clock=clock,
        confirmed_only=settings.require_confirmation,
        disable_after=_DISABLE_AFTER,
        encryption_keys=encryption_keys,
    )
    trail = None
    if settings.audit is not None:
        trail = make_trail(settings.audit, service, limits)
    bulk = Bulk(opened, management, queues, policies, limits=limits, clock=clock)
    return Services(
        policies=policies,
        queues=queues,
        messages=service,
        claims=claims,
        long_polling=long_polling,
        presigned_urls=presigned_urls,
        health=Health(messages, queues, service, claims, None if pools is None else pools.probed),
        subscriptions=subscriptions,
        deliveries=deliveries,
        inspection=DeliveryInspection(
            messages,
            subscriptions,
            sender,
            log,
            limits=limits,
            clock=clock,
            encryption_keys=encryption_keys,
        ),
        connected_subscribers=connected_subscribers,
        authorizer=Authorizer(Defaults(settings.role_defaults)),
        jobs=Jobs(opened, management, bulk, limits=limits, clock=clock),
        schedules=Schedules(management, service, clock),
        topics=Topics(management, messages, limits=limits, clock=clock, turns=policies.turns),
        events=EventStreams(opened, policies, long_polling, limits),
        quotas=quotas,
        usage=QuotaUsage(queues, message_quota, subscriptions, long_polling, connection_limits),
        connection_limits=connection_limits,
        revalidation=Revalidation(),
        rates=rates,
        trail=trail,
        identity=identity,
        trusts=trusts,
        keys=keys,
        encryption_keys=encryption_keys,
        registry=None if pools is None else pools.registry,
        placements=None if pools is None else pools.placements,
        drains=None if pools is None else pools.drains,
    )


def _encryption_keys(
    settings: Settings, management: ManagementStore, clock: Clock
) -> "EncryptionKeys | None":
    """The keys of encrypted queues, if the server has any.

    Raises:
        ConfigurationError: the file of keys is wrong, or the library is not installed.
    """
    if settings.encryption_key_file is None:
        return None
    try:
        from zaqar_lite.service.encryption.encryption_keys import EncryptionKeys, read_key_file  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"encryption_key_file needs the Python package {exc.name!r}: "
            "pip install 'zaqar-lite[encryption]'."
        ) from exc
    return EncryptionKeys(management, read_key_file(settings.encryption_key_file), clock)


def _opened(messages: MessageStore, encryption_keys: "EncryptionKeys") -> MessageStore:
    from zaqar_lite.service.encryption.sealed_stores import opening  # noqa: PLC0415 - with its library

    return opening(messages, encryption_keys)
