"""Put the HTTP layer together over the services."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.checks import Checks, ClientIds
from zaqar_lite.api.dispatch import Dispatcher
from zaqar_lite.api.framework import OPENAPI_PATH, build_framework
from zaqar_lite.api.gate import Gate
from zaqar_lite.api.gateways import Gateways
from zaqar_lite.api.home import home_document
from zaqar_lite.api.lifespan import Lifespan
from zaqar_lite.api.metering import Meter
from zaqar_lite.api.operating import (
    MetricHandlers,
    ProbeHandlers,
    metric_routes,
    probe_routes,
)
from zaqar_lite.api.patience import Patience
from zaqar_lite.api.render import Renderer
from zaqar_lite.api.routes import Route, RouteTree
from zaqar_lite.api.table import (
    claim_routes,
    encryption_routes,
    event_routes,
    flavor_routes,
    job_routes,
    key_routes,
    message_routes,
    pool_routes,
    queue_routes,
    quota_routes,
    schedule_routes,
    service_routes,
    subscription_routes,
    topic_routes,
)
from zaqar_lite.api.v2.claims import ClaimHandlers
from zaqar_lite.api.v2.deliveries import DeliveryHandlers
from zaqar_lite.api.v2.encryption import EncryptionHandlers
from zaqar_lite.api.v2.events import EventHandlers
from zaqar_lite.api.v2.jobs import JobHandlers
from zaqar_lite.api.v2.keys import KeyHandlers
from zaqar_lite.api.v2.messages import MessageHandlers
from zaqar_lite.api.v2.pools import DrainHandlers, FlavorHandlers, PoolHandlers
from zaqar_lite.api.v2.queues import QueueHandlers
from zaqar_lite.api.v2.quotas import QuotaHandlers
from zaqar_lite.api.v2.schedules import ScheduleHandlers
from zaqar_lite.api.v2.service import ServiceHandlers
from zaqar_lite.api.v2.settling import SettlingHandlers
from zaqar_lite.api.v2.subscriptions import SubscriptionHandlers
from zaqar_lite.api.v2.topics import TopicHandlers
from zaqar_lite.api.websocket.handlers import ActionHandlers
from zaqar_lite.api.websocket.hosting import SocketHost
from zaqar_lite.domain.limits import Limits
from zaqar_lite.service.audit import Trail
from zaqar_lite.service.claims import Claims
from zaqar_lite.service.connected import Connected
from zaqar_lite.service.delivering import Deliveries
from zaqar_lite.service.delivery_reports import DeliveryReports
from zaqar_lite.service.events import Events
from zaqar_lite.service.health import Health
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.identity.identity import Identity
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.service.identity.standing import Standing
from zaqar_lite.service.identity.trusts import Trusts
from zaqar_lite.service.jobs import Jobs
from zaqar_lite.service.listeners import Listeners
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.pooling.catalogue import Catalogue
from zaqar_lite.service.pooling.drains import Drains
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas import Quotas
from zaqar_lite.service.rates import Rates
from zaqar_lite.service.readiness import Readiness
from zaqar_lite.service.schedules import Schedules
from zaqar_lite.service.settling import Settling
from zaqar_lite.service.sharing import Sharing
from zaqar_lite.service.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics
from zaqar_lite.service.usage import Usage
from zaqar_lite.service.waiting import Waiting

if TYPE_CHECKING:
    from zaqar_lite.service.encryption.vault import Vault


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that the handlers call; no `identity` where nobody authenticates."""

    policies: Policies
    queues: Queues
    messages: Messages
    claims: Claims
    settling: Settling
    waiting: Waiting
    sharing: Sharing
    health: Health
    subscriptions: Subscriptions
    deliveries: Deliveries
    reports: DeliveryReports
    listeners: Listeners
    authority: Authority
    quotas: Quotas
    usage: Usage
    connected: Connected
    standing: Standing
    rates: Rates
    jobs: Jobs
    schedules: Schedules
    events: Events
    topics: Topics
    trail: Trail | None = None
    identity: Identity | None = None
    trusts: Trusts | None = None
    keys: Keys | None = None
    vault: "Vault | None" = None
    registry: Registry | None = None
    catalogue: Catalogue | None = None
    drains: Drains | None = None


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What is configurable about the HTTP layer as such."""

    version: str
    limits: Limits
    client_ids: ClientIds
    hosts: frozenset[str] | None
    origins: frozenset[str] | None
    gateways: Gateways | None = None
    admin_mode: bool = False
    checksum: bool = False
    access_log: bool = False


def build_app(
    services: Services,
    options: HttpOptions,
    lifespan: Lifespan,
    check_store: Callable[[], None],
    *,
    readiness: Readiness,
    metrics: Metrics,
) -> Dispatcher:
    """Make the ASGI application; `check_store` raises Unavailable until the stores are open."""
    renderer = Renderer(checksum=options.checksum)
    home = home_document(
        admin=options.admin_mode,
        settles=services.settling.works,
        pools=services.registry is not None,
    )
    settling = SettlingHandlers(services.settling)
    events = EventHandlers(services.events, renderer)
    queues = QueueHandlers(
        services.queues, services.subscriptions, services.sharing, services.authority
    )
    subscriptions = SubscriptionHandlers(
        services.subscriptions, services.authority, services.trusts
    )
    patience = Patience(services.waiting, longest=options.limits.max_wait)
    tree = RouteTree(
        (
            *service_routes(
                ServiceHandlers(services.health, home_document=home), admin=options.admin_mode
            ),
            *probe_routes(ProbeHandlers(readiness)),
            *metric_routes(MetricHandlers(metrics), is_open=services.identity is None),
            *queue_routes(queues, options.limits),
            *message_routes(
                MessageHandlers(services.messages, settling, patience, renderer), options.limits
            ),
            *event_routes(events),
            *claim_routes(
                ClaimHandlers(services.claims, patience, renderer), settling, options.limits
            ),
            *subscription_routes(
                subscriptions,
                DeliveryHandlers(services.reports),
            ),
            *topic_routes(
                TopicHandlers(services.topics, services.subscriptions, services.authority),
                queues,
                subscriptions,
                DeliveryHandlers(services.reports),
                options.limits,
            ),
            *job_routes(JobHandlers(services.jobs, services.authority)),
            *schedule_routes(ScheduleHandlers(services.schedules, services.authority)),
            *(
                encryption_routes(EncryptionHandlers(services.vault))
                if services.vault is not None
                else ()
            ),
            *(key_routes(KeyHandlers(services.keys)) if services.keys is not None else ()),
            *_pool_routes(services, options),
            *quota_routes(
                QuotaHandlers(services.quotas, services.usage),
                admin=options.admin_mode or services.identity is not None,
            ),
        )
    )
    metrics.lay_out({route.name: f"{route.method} {route.template}" for route in tree.routes})
    framework = build_framework(
        tree, options.limits, version=options.version, authenticates=services.identity is not None
    )

    def adopt(limits: Limits) -> None:
        options.limits.adopt(limits)
        services.policies.forget_all()
        framework.openapi_schema = None

    def stop() -> None:
        services.waiting.close()
        events.close()

    checks = Checks(client_ids=options.client_ids, sharing=services.sharing, hosts=options.hosts)
    gate = None
    if services.identity is not None:
        gate = Gate(services.identity, services.authority, check_store)
    dispatcher = Dispatcher(
        tree,
        checks,
        gate=gate,
        gateways=options.gateways,
        meter=Meter(services.rates, tree.routes),
        connected=services.connected,
        standing=services.standing,
        framework=framework,
        framework_paths=frozenset((OPENAPI_PATH,)),
        lifespan=lifespan,
        check_store=check_store,
        stop=stop,
        drain=readiness.drain,
        adopt=adopt,
        metrics=metrics,
        auditor=None if services.trail is None else Auditor(services.trail, tree.routes),
        access_log=options.access_log,
    )
    dispatcher.sockets = SocketHost(
        dispatcher,
        checks,
        ActionHandlers(
            services.queues,
            SubscriptionHandlers(services.subscriptions, services.authority, services.trusts),
        ),
        gate=gate,
        gateways=options.gateways,
        connected=services.connected,
        standing=services.standing,
        origins=options.origins,
        subscriptions=services.subscriptions,
        listeners=services.listeners,
    )
    return dispatcher


def _pool_routes(services: Services, options: HttpOptions) -> tuple[Route, ...]:
    """The routes of pools and flavors, in admin mode where the server has any."""
    registry, catalogue, drains = services.registry, services.catalogue, services.drains
    if registry is None or catalogue is None or drains is None or not options.admin_mode:
        return ()
    return (
        *pool_routes(PoolHandlers(registry, catalogue, options.limits), DrainHandlers(drains)),
        *flavor_routes(FlavorHandlers(registry, options.limits)),
    )
