"""Subscriptions: the receivers of a queue's messages."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.arguments import takes, text, whole, zoned
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import queue_path, with_query
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.subscriptions import (
    Delivery,
    FailedDelivery,
    Ping,
    Subscription,
)
from zaqar_lite.client.wire import Call, Page, Request, Response


def subscribe(
    queue: str, subscriber: str, *, ttl: int | None = None, options: Mapping[str, Any] | None = None
) -> Call[tuple[str, str | None]]:
    """Make a subscription; answer its id and, when it is new, its secret."""
    takes("options", options, Mapping)
    wanted: dict[str, Any] = {
        "subscriber": text("subscriber", subscriber),
        "options": dict(options or {}),
    }
    if ttl is not None:
        wanted["ttl"] = whole("ttl", ttl)

    def read(response: Response) -> tuple[str, str | None]:
        document = encoding.document(response)
        return document["subscription_id"], document.get("secret")

    path = queue_path(queue, "subscriptions")
    return Call(Request("POST", path, JSON_TYPE, dumps(wanted)), read)


def list_subscriptions(
    queue: str, *, marker: str | None = None, limit: int | None = None
) -> Call[Page[Subscription]]:
    """List subscriptions, after `marker`."""
    path = with_query(queue_path(queue, "subscriptions"), marker=marker, limit=limit, details=True)
    return Call(Request("GET", path, {}), page_of("subscriptions", _subscription))


def get_subscription(queue: str, subscription_id: str) -> Call[Subscription]:
    """Show a subscription."""
    path = with_query(queue_path(queue, "subscriptions", subscription_id), details=True)
    return Call(Request("GET", path, {}), lambda r: _subscription(encoding.document(r)))


def update_subscription(queue: str, subscription_id: str, changes: Mapping[str, Any]) -> Call[None]:
    """Change a subscription."""
    path = queue_path(queue, "subscriptions", subscription_id)
    return Call(Request("PATCH", path, JSON_TYPE, dumps(dict(changes))), nothing)


def unsubscribe(queue: str, subscription_id: str) -> Call[None]:
    """End a subscription."""
    return Call(Request("DELETE", queue_path(queue, "subscriptions", subscription_id), {}), nothing)


def rotate_secret(queue: str, subscription_id: str) -> Call[str]:
    """Make another secret."""
    path = queue_path(queue, "subscriptions", subscription_id, "secret")
    # Sent twice it would make two, one of which nobody knows.
    return Call(
        Request("POST", path, {}), lambda r: str(encoding.document(r)["secret"]), resend=False
    )


def deliveries(queue: str, subscription_id: str) -> Call[tuple[Delivery, ...]]:
    """List the last attempts to deliver."""

    def read(response: Response) -> tuple[Delivery, ...]:
        return tuple(
            Delivery(
                entry["id"],
                encoding.instant(entry["at"]),
                entry["attempt"],
                entry["outcome"],
                entry["status"],
                entry["milliseconds"],
                entry["answer"],
                entry["error"],
                encoding.instant(entry["next"]),
            )
            for entry in encoding.document(response)["deliveries"]
        )

    path = queue_path(queue, "subscriptions", subscription_id, "deliveries")
    return Call(Request("GET", path, {}), read)


def failed_deliveries(
    queue: str, subscription_id: str, *, marker: str | None = None
) -> Call[Page[FailedDelivery]]:
    """List what could not be delivered, after `marker`."""

    def read_entry(entry: dict[str, Any]) -> FailedDelivery:
        return FailedDelivery(
            entry["id"],
            entry["message_id"],
            encoding.instant(entry["at"]),
            entry["attempts"],
            entry["reason"],
            entry["message"],
        )

    path = queue_path(queue, "subscriptions", subscription_id, "deliveries")
    path = with_query(path, state="failed", marker=marker)
    return Call(Request("GET", path, {}), page_of("deliveries", read_entry))


def retry_delivery(queue: str, subscription_id: str, delivery_id: str) -> Call[None]:
    """Deliver again."""
    path = queue_path(queue, "subscriptions", subscription_id, "deliveries", delivery_id, "retry")
    return Call(Request("POST", path, {}), nothing)


def replay_messages(
    queue: str,
    subscription_id: str,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    marker: str | None = None,
) -> Call[tuple[int, str | None]]:
    """Deliver again a part of what was posted in a span of time; answer how many, and the rest."""

    def read(response: Response) -> tuple[int, str | None]:
        document = encoding.document(response)
        return document["replayed"], document["marker"]

    zoned("since", since)
    zoned("until", until)
    span = {"from": since, "until": until}
    body = {name: at.isoformat() for name, at in span.items() if at is not None}
    path = queue_path(queue, "subscriptions", subscription_id, "replay")
    if marker is not None:
        body["marker"] = marker
    return Call(Request("POST", path, JSON_TYPE, dumps(body)), read)


def ping_subscription(queue: str, subscription_id: str) -> Call[Ping]:
    """Send a test notification."""

    def read(response: Response) -> Ping:
        document = encoding.document(response)
        return Ping(
            document["outcome"],
            document["status"],
            document["milliseconds"],
            document["answer"],
            document["error"],
        )

    path = queue_path(queue, "subscriptions", subscription_id, "ping")
    return Call(Request("POST", path, {}), read)


def _subscription(entry: Any) -> Subscription:  # noqa: ANN401 - JSON is anything
    return Subscription(
        entry["id"],
        entry["source"],
        entry["subscriber"],
        entry["ttl"],
        entry["age"],
        entry["options"],
        entry["confirmed"],
        (entry.get("disabled") or {}).get("reason"),
    )
