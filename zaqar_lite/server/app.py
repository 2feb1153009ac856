"""Put the HTTP layer together over the services."""

import asyncio
import functools
from dataclasses import replace

from zaqar_lite import __version__
from zaqar_lite.api.application import Application
from zaqar_lite.api.asgi import AsgiApp
from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.authentication import RequestAuthentication
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.long_polling import LongRequests, Polling
from zaqar_lite.api.render import Renderer
from zaqar_lite.api.request import Dialect, Route
from zaqar_lite.api.routes import RouteTree, on_topics, routes_of
from zaqar_lite.api.v2.claims import ClaimActions
from zaqar_lite.api.v2.events import EventActions
from zaqar_lite.api.v2.jobs import JobActions, ScheduleActions, delayed_twins
from zaqar_lite.api.v2.messages import MessageActions
from zaqar_lite.api.v2.pools import FlavorActions, PoolActions
from zaqar_lite.api.v2.projects import EncryptionActions, KeyActions, QuotaActions
from zaqar_lite.api.v2.queues import QueueActions
from zaqar_lite.api.v2.service import MetricActions, ServiceActions, home_document
from zaqar_lite.api.v2.subscriptions import SubscriptionActions
from zaqar_lite.api.v2.topics import TopicActions, topic_messages
from zaqar_lite.api.websocket.conversation import SocketHost
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.server.authentication import trusted_proxies
from zaqar_lite.server.services import Services
from zaqar_lite.service.health import Readiness
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.startup import Startup

_OPEN_METRICS = ("metrics", "queue_metrics")
"""The routes that are open to everybody where nobody is asked who they are."""


def build_app(
    services: Services,
    startup: Startup,
    readiness: Readiness,
    metrics: Metrics,
    *,
    is_in_process: bool,
    page: AsgiApp | None,
) -> Application:
    """Make the application.

    Raises:
        ConfigurationError: a setting of the HTTP layer is wrong, or a library is missing.
    """
    settings, limits = services.settings, services.limits
    renderer = Renderer(checksum=settings.enable_checksum)
    checks = Checks(
        any_client_id=settings.client_id_uuid_safe == "off",
        presigned_urls=services.presigned_urls,
        hosts=settings.hosts,
    )
    authentication = None
    if services.identity is not None:
        authentication = RequestAuthentication(
            services.identity, services.authorizer, startup.check
        )
    long_requests = LongRequests(authentication, checks, services.revalidation)
    events = EventActions(services.events, renderer, long_requests)
    polling = Polling(services.long_polling, long_requests, longest=limits.max_wait)
    proxies = trusted_proxies(settings)
    dialect = None
    if settings.sqs:
        dialect = _sqs(services, polling, behind_gateways=proxies is not None)
    probes = ServiceActions(services.health, readiness, lambda: home_document(tree.routes, limits))
    about = (probes, MetricActions(metrics), events)
    tree = RouteTree(_routes(services, polling, renderer, about))
    everything = (*tree.routes, *(() if dialect is None else dialect.routes))
    metrics.lay_out({route.name: f"{route.method} {route.template}" for route in everything})

    @functools.cache
    def document() -> bytes:
        from zaqar_lite.api.openapi import write_document  # noqa: PLC0415 - it takes long

        authenticates = services.identity is not None
        return write_document(
            tree, limits, dialect, version=__version__, authenticates=authenticates
        )

    def use_settings(new: Limits, quota: Quota) -> None:
        limits.replace(new)
        services.quotas.use_defaults(quota)
        services.policies.forget_all()
        document.cache_clear()

    def stop() -> None:
        services.long_polling.close()
        events.close()

    application = Application(
        tree,
        checks,
        authentication=authentication,
        proxies=proxies,
        rates=services.rates,
        connection_limits=services.connection_limits,
        describe=functools.partial(asyncio.to_thread, document),
        lifespan=startup.running,
        check_store=startup.check,
        stop=stop,
        drain=readiness.drain,
        use_settings=use_settings,
        metrics=metrics,
        auditor=None if services.trail is None else Auditor(services.trail, everything),
        access_log=settings.access_log,
        is_in_process=is_in_process,
        page=page,
        dialect=dialect,
    )
    application.sockets = SocketHost(
        tree,
        application.answer,
        checks,
        authentication=authentication,
        proxies=proxies,
        connection_limits=services.connection_limits,
        revalidation=services.revalidation,
        origins=settings.origins,
        subscriptions=services.subscriptions,
        connected_subscribers=services.connected_subscribers,
    )
    return application


def _sqs(services: Services, polling: Polling, *, behind_gateways: bool) -> Dialect:
    """The protocol of SQS, over the same services."""
    from zaqar_lite.sqs.authentication import SignedRequests  # noqa: PLC0415 - few servers need it
    from zaqar_lite.sqs.messages import MessageOperations  # noqa: PLC0415
    from zaqar_lite.sqs.move_tasks import MoveTasks  # noqa: PLC0415
    from zaqar_lite.sqs.protocol import SqsDialect  # noqa: PLC0415
    from zaqar_lite.sqs.queues import QueueOperations  # noqa: PLC0415
    from zaqar_lite.sqs.receipts import Receipts  # noqa: PLC0415

    limits = services.limits
    queues = QueueOperations(services.queues, services.authorizer, limits)
    signatures = None
    if services.identity is not None:
        signatures = SignedRequests(services.keys, services.identity, services.messages.clock)
    messages = MessageOperations(
        services.messages,
        replace(services.claims, shortest=1),
        polling,
        queues,
        Receipts(services.queues.management),
        limits,
    )
    return SqsDialect(
        (queues, messages, MoveTasks(services.jobs, queues, services.authorizer)),
        limits,
        signatures=signatures,
        behind_gateways=behind_gateways,
    )


def _routes(
    services: Services,
    polling: Polling,
    renderer: Renderer,
    others: tuple[object, ...],
) -> tuple[Route, ...]:
    """Every route that is served: those of the services, and of `others`.

    Routes that this server cannot or may not serve are left out.
    """
    settings, limits, authorizer = services.settings, services.limits, services.authorizer
    shared = (services.subscriptions, services.presigned_urls, authorizer)
    queues, topics = QueueActions(services.queues, *shared), TopicActions(services.topics, *shared)
    claims = ClaimActions(services.claims, polling, renderer)
    messages = MessageActions(services.messages, claims, polling, renderer)
    jobs = JobActions(services.jobs, authorizer)
    subscriptions = SubscriptionActions(
        services.subscriptions,
        authorizer,
        services.trusts,
        services.inspection,
        limits.max_subscriptions_per_page,
    )
    actions: list[object] = [
        *others,
        queues,
        messages,
        claims,
        subscriptions,
        jobs,
        ScheduleActions(services.schedules, authorizer),
        QuotaActions(services.quotas, services.usage),
    ]
    if services.encryption_keys is not None:
        actions.append(EncryptionActions(services.encryption_keys))
    if services.keys is not None:
        actions.insert(len(others), KeyActions(services.keys, settings.sqs))
    is_admin, pools = settings.admin_mode, services.pools
    if is_admin and pools is not None:
        most = limits.max_pools_per_page
        actions.append(PoolActions(pools.registry, pools.placements, pools.drains, most))
        actions.append(FlavorActions(pools.registry, limits.max_flavors_per_page))
    absent = {"topic_replay_messages"}  # a topic keeps nothing that could be sent again
    if not is_admin:
        absent.add("health")
    if not is_admin and services.identity is None:
        absent |= {"show_quotas", "set_quotas", "reset_quotas"}
    found = [route for one in actions for route in routes_of(one, limits)]
    found += on_topics(route for one in (topics, subscriptions) for route in routes_of(one, limits))
    found += topic_messages(routes_of(messages, limits))
    found += delayed_twins(routes_of(jobs, limits))
    open_too = _OPEN_METRICS if services.identity is None else ()
    return tuple(
        replace(route, public=route.public or route.name in open_too)
        for route in found
        if route.name not in absent
    )
