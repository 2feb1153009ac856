"""The composition root: settings -> stores -> services -> application, and the lifespan."""

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from zaqar_lite import __version__
from zaqar_lite.api.application import Application
from zaqar_lite.api.request import Route
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.subscriptions import KIND as SUBSCRIPTION
from zaqar_lite.server.app import build_app
from zaqar_lite.server.loading import load
from zaqar_lite.server.logs import request_traces
from zaqar_lite.server.policy_file import PolicyFile
from zaqar_lite.server.services import Services, encryption_keys_of
from zaqar_lite.server.stores import drainer_of, make_stores
from zaqar_lite.service.health import Readiness
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.identity.keys import Keys, ensure_admin_key
from zaqar_lite.service.identity.trusts import KIND as TRUST
from zaqar_lite.service.janitor import Janitor
from zaqar_lite.service.jobs.jobs import JobRunner
from zaqar_lite.service.metrics.instrumented_store import instrumented
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.metrics.queue_depths import QueueDepths
from zaqar_lite.service.metrics.shared_counters import MetricFamilies, Place, SharedCounters
from zaqar_lite.service.pooling.pools import POOL
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.rate_limits import SharedRateLimits
from zaqar_lite.service.schedules.schedules import KIND as SCHEDULE
from zaqar_lite.service.schedules.schedules import Scheduler
from zaqar_lite.service.startup import Startup
from zaqar_lite.settings import Settings
from zaqar_lite.ui.page import Page

_SWEEP_INTERVAL = 1.0
"""Seconds that the sweep pauses when it has nothing left to do."""
_SEALED_KINDS = frozenset((SUBSCRIPTION, SCHEDULE, POOL, TRUST))
"""The kinds of records that may hold a secret."""
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
    stores = make_stores(settings, clock)
    messages, management = stores.messages, stores.management
    encryption_keys = encryption_keys_of(settings, management, clock)
    if encryption_keys is not None:
        from zaqar_lite.service.encryption import sealing  # noqa: PLC0415 - its library

        management = sealing(management, encryption_keys, _SEALED_KINDS)
    limits = limits or settings.limits()
    families, counters = MetricFamilies(), SharedCounters(place)
    services = Services(
        settings,
        stores,
        management,
        clock,
        limits=limits,
        counted=instrumented(messages, families, counters.row),
        encryption_keys=encryption_keys,
    )
    unsealed = (messages, stores.management)
    queue_depths = QueueDepths(*unsealed, counters)
    store = settings.store.partition(":")[0]
    metrics = Metrics(families, counters, queue_depths, clock, version=__version__, store=store)
    long_polling = services.long_polling
    metrics.gauges["disk_is_low"] = lambda: messages.condition().is_low
    metrics.gauges["log_bytes"] = lambda: messages.condition().log_bytes
    metrics.gauges["waiters"] = lambda: (
        long_polling.limit.count - long_polling.limit.count_of(DELIVERIES_PROJECT)
    )
    services.queues.recent.flows = counters.row.flows
    services.deliveries.on_outcome = metrics.delivered
    services.deliveries.on_disabled = metrics.disabled
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
        unsealed,
        (
            *(janitor, services.deliveries, services.connected_subscribers, services.queues.recent),
            *(services.quotas, services.message_quota, services.leases),
            services.trail,
            SharedRateLimits(services.rates, management, share=1 / settings.workers)
            if management.shares_rates
            else None,
            JobRunner(services.jobs, clock, lambda: metrics.asked),
            drainer_of(settings, stores.pools),
            Scheduler(
                services.schedules, messages, clock, window_ms=settings.idempotency_window * 1000
            ),
            *services.connections,
            services.revalidation,
            traces,
            metrics,
        ),
        _prepare(settings, services.keys, services.quotas),
    )
    readiness = Readiness(
        messages, startup.check, settings.data_directory if settings.needs_free_disk else None
    )
    app = build_app(
        services,
        startup,
        readiness,
        metrics,
        # No driver of a server elsewhere is asked without a task: libraries need one for a timeout.
        is_in_process=store in _IN_PROCESS and stores.one_store and not settings.pooling,
        page=page,
    )
    app.traces = traces
    if settings.policy_file is not None:
        app.reread = _policy(settings.policy_file, services.authorizer, app.routes).read
        app.reread()()
    if page is not None:
        page.api = app
    return app


def _policy(path: Path, authorizer: Authorizer, routes: Iterable[Route]) -> PolicyFile:
    """The operator's own rules, over the defaults of all routes."""
    rules = [route.access for route in routes if route.access.rule is not None]
    defaults = {str(access.rule): authorizer.default_rule(access.verb) for access in rules}
    return PolicyFile(path, defaults, authorizer.use_rules)


def _prepare(
    settings: Settings, keys: Keys | None, quotas: Quotas
) -> Callable[[], Awaitable[object]]:
    """Prepare the stores before the first request."""
    path = settings.admin_key_file or settings.data_directory / "admin.key"

    async def prepare() -> None:
        await quotas.load()
        if keys is not None:
            await ensure_admin_key(path, keys)

    return prepare
