"""Subscriptions and their deliveries."""

import datetime as dt
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from zaqar_lite.client.arguments import takes, text, whole, zoned
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints.requests import ask, queue_path, tell, with_query
from zaqar_lite.client.models import Delivery, FailedDelivery, Ping, Subscription
from zaqar_lite.client.serialization import reader
from zaqar_lite.client.steps import Pages, Steps, listing, method

_DELIVERY = reader(Delivery, next_at="next")
_FAILED = reader(FailedDelivery)
_PING = reader(Ping)
_SUBSCRIPTION = reader(Subscription)


class Subscriptions(BaseClient):
    """Make, list, change and end subscriptions, and look at their deliveries."""

    @method
    def subscribe(
        self,
        queue: str,
        subscriber: str,
        *,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Steps[tuple[str, str | None]]:
        """Have a queue's messages sent to a URL; return the id and the secret.

        The secret verifies what is sent (`zaqar_lite.webhooks.verify`) and is the only copy there
        is. It is None when the subscriber was there already.

        Args:
            queue: its name; it is made unless it is there.
            subscriber: `https://...`, `http://...` or `mailto:...`.
            ttl: seconds that the subscription lives.
            options: `post_headers`, `post_data`, `dead_letter_queue` and the like.
        """
        takes("options", options, Mapping)
        wanted: dict[str, Any] = {
            "subscriber": text("subscriber", subscriber),
            "options": dict(options or {}),
        }
        if ttl is not None:
            wanted["ttl"] = whole("ttl", ttl)

        def read(found: Mapping[str, Any]) -> tuple[str, str | None]:
            return found["subscription_id"], found.get("secret")

        return self._exchange(ask("POST", _path(queue), read, wanted))

    @listing
    def list_subscriptions(self, queue: str) -> Pages[Subscription]:
        """Yield a queue's subscriptions in the order they were made, page by page."""
        return self._pages(_path(queue), "subscriptions", _subscription, details=True)

    @method
    def get_subscription(self, queue: str, subscription_id: str) -> Steps[Subscription]:
        """Return a subscription; the values of its headers are masked."""
        path = with_query(_path(queue, subscription_id), details=True)
        return self._exchange(ask("GET", path, _subscription))

    @method
    def update_subscription(
        self,
        queue: str,
        subscription_id: str,
        *,
        subscriber: str | None = None,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
        disabled: bool | None = None,
    ) -> Steps[None]:
        """Change what is given; `disabled=False` enables what the server has disabled."""
        takes("subscriber", subscriber, str)
        takes("options", options, Mapping)
        wanted = None if ttl is None else whole("ttl", ttl)
        given = {"subscriber": subscriber, "ttl": wanted, "options": options, "disabled": disabled}
        changes = {name: value for name, value in given.items() if value is not None}
        return self._exchange(tell("PATCH", _path(queue, subscription_id), changes))

    @method
    def unsubscribe(self, queue: str, subscription_id: str) -> Steps[None]:
        """End a subscription; an absent one is no error."""
        return self._exchange(tell("DELETE", _path(queue, subscription_id)))

    @method
    def rotate_secret(self, queue: str, subscription_id: str) -> Steps[str]:
        """Make another secret and return it; the one before is good for a day."""
        path = _path(queue, subscription_id, "secret")
        # Sent twice it would make two, one of which nobody knows.
        return self._exchange(ask("POST", path, itemgetter("secret"), resend=False))

    @method
    def deliveries(self, queue: str, subscription_id: str) -> Steps[Sequence[Delivery]]:
        """Return the last 20 attempts to deliver, the newest first."""
        path = _path(queue, subscription_id, "deliveries")
        return self._exchange(
            ask("GET", path, lambda found: tuple(map(_DELIVERY, found["deliveries"])))
        )

    @listing
    def failed_deliveries(self, queue: str, subscription_id: str) -> Pages[FailedDelivery]:
        """Yield what could not be delivered in the last 7 days, the oldest first."""
        path = _path(queue, subscription_id, "deliveries")
        return self._pages(path, "deliveries", _FAILED, state="failed")

    @method
    def retry_delivery(self, queue: str, subscription_id: str, delivery_id: str) -> Steps[None]:
        """Deliver again: a failed delivery, or a message that the queue still has."""
        path = _path(queue, subscription_id, "deliveries", delivery_id, "retry")
        return self._exchange(tell("POST", path))

    @method
    def replay_messages(
        self,
        queue: str,
        subscription_id: str,
        *,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
    ) -> Steps[int]:
        """Deliver again what was posted from `since` on and before `until`; return how many.

        Only messages that the queue still has can be delivered again.
        """
        zoned("since", since)
        zoned("until", until)
        span = {"from": since, "until": until}
        wanted: dict[str, Any] = {name: at for name, at in span.items() if at is not None}
        path = _path(queue, subscription_id, "replay")
        count: int = 0
        while True:
            call = ask("POST", path, itemgetter("replayed", "marker"), wanted)
            some, marker = yield from self._exchange(call)
            count += some
            if marker is None:
                return count
            wanted["marker"] = marker

    @method
    def ping_subscription(self, queue: str, subscription_id: str) -> Steps[Ping]:
        """Send a test notification and return what the receiver answered."""
        return self._exchange(ask("POST", _path(queue, subscription_id, "ping"), _PING))


def _path(queue: str, *rest: str) -> str:
    return queue_path(queue, "subscriptions", *rest)


def _subscription(document: Any) -> Subscription:  # noqa: ANN401 - JSON is anything
    return _SUBSCRIPTION({**document, "disabled": (document.get("disabled") or {}).get("reason")})
