"""The part of the composition root that is about services: all of them, over the stores."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.subscriptions import refused_schemes
from zaqar_lite.server.authentication import authentication
from zaqar_lite.server.loading import signing_keys
from zaqar_lite.server.stores import Stores
from zaqar_lite.server.transports import guard_of, webhooks_and_mail
from zaqar_lite.service.audit import make_trail
from zaqar_lite.service.claims import Claims
from zaqar_lite.service.delivery.attempt import DeliverySender
from zaqar_lite.service.delivery.deliveries import Deliveries
from zaqar_lite.service.delivery.inspection import AttemptLog, DeliveryInspection
from zaqar_lite.service.delivery.internal_targets import SCHEME, ConnectedSubscribers, QueueTarget
from zaqar_lite.service.event_streams import EventStreams
from zaqar_lite.service.health import Health
from zaqar_lite.service.identity.authentication import Revalidation
from zaqar_lite.service.identity.authorization import Authorizer, Defaults
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.service.jobs.bulk import Bulk
from zaqar_lite.service.jobs.jobs import Jobs
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.presigned_urls import Keyring, PresignedUrls
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas.concurrency_limits import (
    ConcurrencyLeases,
    ConcurrencyLimit,
    ConnectionLimits,
)
from zaqar_lite.service.quotas.quota_usage import MessageQuota, QuotaUsage
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.rate_limits import RateLimits
from zaqar_lite.service.routing import Router
from zaqar_lite.service.schedules.schedules import Schedules
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Confirmation, Subscriptions
from zaqar_lite.service.topics import Topics
from zaqar_lite.settings import Settings
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

if TYPE_CHECKING:
    from zaqar_lite.service.encryption import EncryptionKeys

_DISABLE_AFTER = 432_000
"""Seconds with nothing but failures after which a subscription is disabled."""


@dataclass(eq=False, repr=False)
class Services:
    """Everything that the actions call, and what works beside them.

    What serves requests uses `counted`, the message store that counts calls. `management` seals
    what it keeps where the server has `encryption_keys`. There is no `identity` where nobody
    authenticates.
    """

    settings: Settings
    stores: Stores
    management: ManagementStore
    clock: Clock
    limits: Limits
    counted: MessageStore
    encryption_keys: "EncryptionKeys | None"

    def __post_init__(self) -> None:
        settings, management, stores = self.settings, self.management, self.stores
        clock, limits, encryption_keys = self.clock, self.limits, self.encryption_keys
        messages, shared = stores.messages, stores.shared
        self.pools = pools = stores.pools
        self.keys = Keys(management, clock) if "keys" in settings.providers else None
        self.identity, self.connections, self.trusts = authentication(
            settings, self.keys, management, clock
        )
        self.authorizer = Authorizer(Defaults(settings.role_defaults))
        self.revalidation = Revalidation()
        self.quotas = quotas = Quotas(management, settings.default_quota, shared=shared)
        self.message_quota = MessageQuota(messages, management, quotas, shared=shared)
        self.leases = ConcurrencyLeases(management, workers=settings.workers) if shared else None
        limit_of = ConcurrencyLimit if self.leases is None else self.leases.of
        self.connection_limits = ConnectionLimits(quotas, limit_of("connections"))
        share = 1.0 if management.shares_rates else 1 / settings.workers
        self.rates = RateLimits(quotas, share=share)
        quotas.changed = self.rates.refresh
        self.policies = policies = Policies(management, limits, checked=stores.one_store)
        if pools is not None:
            pools.registry.keep_in(management)
        # Deliveries keep what they send sealed, so they see the store as it is.
        opened = self.counted
        if encryption_keys is not None:
            from zaqar_lite.service.encryption import opening  # noqa: PLC0415 - with its library

            opened = opening(opened, encryption_keys)
        self.queues = queues = Queues(
            management,
            messages,
            policies,
            limits,
            quotas.of,
            encrypts=encryption_keys is not None,
            placements=None if pools is None else pools.placements,
        )
        self.messages = Messages(
            opened,
            queues,
            policies,
            Router(policies),
            limits=limits,
            clock=clock,
            message_quota=self.message_quota,
            encryption_keys=encryption_keys,
        )
        self.claims = Claims(opened, queues, policies, limits)
        self.long_polling = LongPolling(
            messages,
            most=limits.max_waiters,
            most_per_project=limits.max_waiters_per_project,
            quota_of=quotas.of,
            limit=limit_of("waiters"),
        )
        self.presigned_urls = PresignedUrls(
            Keyring(signing_keys(settings)),
            management,
            max_expires=limits.signed_url_max_expires,
        )
        self._deliver()
        pooled = None if pools is None else pools.messages
        self.health = Health(messages, queues, self.messages, self.claims, pooled)
        bulk = Bulk(opened, management, queues, policies, limits=limits, clock=clock)
        self.jobs = Jobs(opened, management, bulk, limits=limits, clock=clock)
        self.schedules = Schedules(management, self.messages, clock)
        self.topics = Topics(management, messages, limits=limits, clock=clock)
        self.events = EventStreams(opened, policies, self.long_polling)
        self.usage = QuotaUsage(
            queues,
            self.message_quota,
            self.subscriptions,
            self.long_polling,
            self.connection_limits,
        )
        self.trail = None
        if settings.audit is not None:
            self.trail = make_trail(settings.audit, self.messages, limits)

    def _deliver(self) -> None:
        """Make what subscribes to queues, and delivers to subscribers."""
        settings, clock = self.settings, self.clock
        messages, management = self.stores.messages, self.management
        subscriber_cache = SubscriberCache(management)
        self.subscriptions = Subscriptions(
            management,
            self.queues,
            self.policies,
            subscriber_cache,
            confirmations=Confirmation(
                messages, self.presigned_urls, clock, public_url=settings.public_url
            )
            if settings.require_confirmation
            else None,
            limits=self.limits,
            clock=clock,
            refused=refused_schemes(
                mail=settings.smtp_url is not None, trusts=self.trusts is not None
            ),
            quota_of=self.quotas.of,
            left=(lambda _: None) if self.trusts is None else self.trusts.left,
        )
        self.connected_subscribers = ConnectedSubscribers(
            messages, self.long_polling, self.encryption_keys
        )
        guard = guard_of(settings)
        transports = {
            **webhooks_and_mail(settings, self.trusts, guard),
            "queue": QueueTarget(self.messages, clock),
            SCHEME: self.connected_subscribers,
        }
        sender = DeliverySender(
            transports,
            clock,
            has_ended=subscriber_cache.has_ended,
            refusal=guard.refusal,
            encryption_keys=self.encryption_keys,
        )
        log = AttemptLog(management, clock)
        self.deliveries = Deliveries(
            messages,
            management,
            self.queues,
            self.subscriptions,
            subscriber_cache,
            long_polling=self.long_polling,
            sender=sender,
            log=log,
            clock=clock,
            confirmed_only=settings.require_confirmation,
            disable_after=_DISABLE_AFTER,
        )
        self.inspection = DeliveryInspection(
            messages,
            self.subscriptions,
            sender,
            log,
            clock=clock,
        )


def encryption_keys_of(
    settings: Settings, management: ManagementStore, clock: Clock
) -> "EncryptionKeys | None":
    """The keys of encrypted queues, if the server has any.

    Raises:
        ConfigurationError: the file of keys is wrong, or the library is not installed.
    """
    if settings.encryption_key_file is None:
        return None
    try:
        from zaqar_lite.service.encryption import EncryptionKeys, read_key_file  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"encryption_key_file needs the Python package {exc.name!r}: "
            "pip install 'zaqar-lite[encryption]'."
        ) from exc
    return EncryptionKeys(management, read_key_file(settings.encryption_key_file), clock)
