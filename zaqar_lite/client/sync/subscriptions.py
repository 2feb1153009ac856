# Generated from asynchronous/subscriptions.py by tests/generate_sync.py; change it there.
"""Subscriptions: the sync client's methods."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

from zaqar_lite.client.arguments import takes
from zaqar_lite.client.endpoints import subscriptions
from zaqar_lite.client.subscriptions import Delivery, FailedDelivery, Ping, Subscription
from zaqar_lite.client.sync.calls import SyncCalls


class SyncSubscriptions(SyncCalls):
    """Make, list, change and end subscriptions, and look at their deliveries."""

    def subscribe(
        self,
        queue: str,
        subscriber: str,
        *,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[str, str | None]:
        """Have a queue's messages sent to a URL; return the id and the secret.

        The secret verifies what is sent (`zaqar_lite.webhooks.verify`) and is the only copy there
        is. It is None when the subscriber was there already.

        Args:
            queue: its name; it is made unless it is there.
            subscriber: `https://...`, `http://...` or `mailto:...`.
            ttl: seconds that the subscription lives.
            options: `post_headers`, `post_data`, `dead_letter_queue` and the like.
        """
        return self.call(subscriptions.subscribe(queue, subscriber, ttl=ttl, options=options))

    def list_subscriptions(self, queue: str) -> Iterator[Subscription]:
        """Yield a queue's subscriptions in the order they were made, page by page."""
        return self._items(lambda marker: subscriptions.list_subscriptions(queue, marker=marker))

    def get_subscription(self, queue: str, subscription_id: str) -> Subscription:
        """Return a subscription; the values of its headers are masked."""
        return self.call(subscriptions.get_subscription(queue, subscription_id))

    def update_subscription(
        self,
        queue: str,
        subscription_id: str,
        *,
        subscriber: str | None = None,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
        disabled: bool | None = None,
    ) -> None:
        """Change what is given; `disabled=False` enables what the server has disabled."""
        takes("subscriber", subscriber, str)
        takes("ttl", ttl, Integral, "a whole number of seconds")
        takes("options", options, Mapping)
        given = {"subscriber": subscriber, "ttl": ttl, "options": options, "disabled": disabled}
        changes = {name: value for name, value in given.items() if value is not None}
        self.call(subscriptions.update_subscription(queue, subscription_id, changes))

    def unsubscribe(self, queue: str, subscription_id: str) -> None:
        """End a subscription; an absent one is no error."""
        self.call(subscriptions.unsubscribe(queue, subscription_id))

    def rotate_secret(self, queue: str, subscription_id: str) -> str:
        """Make another secret and return it; the one before is good for a day."""
        return self.call(subscriptions.rotate_secret(queue, subscription_id))

    def deliveries(self, queue: str, subscription_id: str) -> Sequence[Delivery]:
        """Return the last 20 attempts to deliver, the newest first."""
        return self.call(subscriptions.deliveries(queue, subscription_id))

    def failed_deliveries(self, queue: str, subscription_id: str) -> Iterator[FailedDelivery]:
        """Yield what could not be delivered in the last 7 days, the oldest first."""
        return self._items(
            lambda marker: subscriptions.failed_deliveries(queue, subscription_id, marker=marker)
        )

    def retry_delivery(self, queue: str, subscription_id: str, delivery_id: str) -> None:
        """Deliver again: a failed delivery, or a message that the queue still has."""
        self.call(subscriptions.retry_delivery(queue, subscription_id, delivery_id))

    def replay_messages(
        self,
        queue: str,
        subscription_id: str,
        *,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
    ) -> int:
        """Deliver again what was posted from `since` on and before `until`; return how many.

        Only messages that the queue still has can be delivered again.
        """
        count, marker = 0, None
        while True:
            some, marker = self.call(
                subscriptions.replay_messages(
                    queue, subscription_id, since=since, until=until, marker=marker
                )
            )
            count += some
            if marker is None:
                return count

    def ping_subscription(self, queue: str, subscription_id: str) -> Ping:
        """Send a test notification and return what the receiver answered."""
        return self.call(subscriptions.ping_subscription(queue, subscription_id))
