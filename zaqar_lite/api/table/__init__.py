"""The table of routes, a module for each noun, in the order of the home document's resources."""

from zaqar_lite.api.table.claims import claim_routes
from zaqar_lite.api.table.encryption import encryption_routes
from zaqar_lite.api.table.events import event_routes
from zaqar_lite.api.table.jobs import job_routes
from zaqar_lite.api.table.keys import key_routes
from zaqar_lite.api.table.messages import message_routes
from zaqar_lite.api.table.pools import flavor_routes, pool_routes
from zaqar_lite.api.table.queues import queue_routes
from zaqar_lite.api.table.quotas import quota_routes
from zaqar_lite.api.table.schedules import schedule_routes
from zaqar_lite.api.table.service import service_routes
from zaqar_lite.api.table.subscriptions import subscription_routes
from zaqar_lite.api.table.topics import topic_routes

__all__ = [
    "claim_routes",
    "encryption_routes",
    "event_routes",
    "flavor_routes",
    "job_routes",
    "key_routes",
    "message_routes",
    "pool_routes",
    "queue_routes",
    "quota_routes",
    "schedule_routes",
    "service_routes",
    "subscription_routes",
    "topic_routes",
]
