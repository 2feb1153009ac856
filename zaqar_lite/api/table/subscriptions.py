"""The routes of subscriptions and of their deliveries."""

from zaqar_lite.api.routes import Parameter, Route
from zaqar_lite.api.table.shared import DETAILS, LIMIT, MARKER, QUEUE
from zaqar_lite.api.v2.deliveries import DeliveryHandlers
from zaqar_lite.api.v2.subscriptions import SubscriptionHandlers
from zaqar_lite.domain.identity import Access, Verb

_SUBSCRIPTION_LIMIT = Parameter(
    "limit", "SubscriptionLimit", "How many subscriptions to answer at most."
)
_SUBSCRIPTIONS = QUEUE + "/subscriptions"
_SUBSCRIPTION = _SUBSCRIPTIONS + "/{subscription_id}"
_LARGEST_SUBSCRIPTION = 65_536


def subscription_routes(
    handlers: SubscriptionHandlers, deliveries: DeliveryHandlers
) -> tuple[Route, ...]:
    """The routes of subscriptions."""
    return (
        Route(
            "POST",
            _SUBSCRIPTIONS,
            handlers.create,
            "create_subscription",
            "Subscribe to a queue",
            (201, 400, 409, 413, 503),
            Access("subscription:create", Verb.MANAGE),
            body="Subscription",
            answer="Subscribed",
            largest_body=_LARGEST_SUBSCRIPTION,
        ),
        Route(
            "GET",
            _SUBSCRIPTIONS,
            handlers.list_subscriptions,
            "list_subscriptions",
            "List a queue's subscriptions",
            (200, 400, 503),
            Access("subscription:get_all", Verb.READ),
            (MARKER, _SUBSCRIPTION_LIMIT, DETAILS),
            answer="Subscriptions",
        ),
        Route(
            "GET",
            _SUBSCRIPTION,
            handlers.get,
            "show_subscription",
            "Show a subscription",
            (200, 400, 404, 503),
            Access("subscription:get", Verb.READ),
            (DETAILS,),
            answer="SubscriptionShown",
        ),
        Route(
            "PATCH",
            _SUBSCRIPTION,
            handlers.update,
            "update_subscription",
            "Change a subscription",
            (204, 400, 404, 409, 413, 503),
            Access("subscription:update", Verb.MANAGE),
            body="SubscriptionChange",
            largest_body=_LARGEST_SUBSCRIPTION,
        ),
        Route(
            "DELETE",
            _SUBSCRIPTION,
            handlers.delete,
            "delete_subscription",
            "End a subscription",
            (204, 400, 503),
            Access("subscription:delete", Verb.MANAGE),
        ),
        Route(
            "PUT",
            _SUBSCRIPTION + "/confirm",
            handlers.confirm,
            "confirm_subscription",
            "Confirm a subscription, or refuse it",
            (204, 400, 404, 413, 503),
            Access("subscription:confirm", Verb.MANAGE),
            body="Confirmation",
        ),
        Route(
            "POST",
            _SUBSCRIPTION + "/secret",
            handlers.rotate_secret,
            "rotate_secret",
            "Make another secret",
            (200, 400, 404, 503),
            Access("subscription:rotate_secret", Verb.MANAGE),
            answer="SubscriptionSecret",
        ),
        Route(
            "GET",
            _SUBSCRIPTION + "/deliveries",
            deliveries.list_deliveries,
            "list_deliveries",
            "List a subscription's deliveries",
            (200, 400, 404, 503),
            Access("subscription:get_deliveries", Verb.READ),
            (Parameter("state", "DeliveryState", "'last' or 'failed'."), MARKER, LIMIT),
            answer="Deliveries",
        ),
        Route(
            "POST",
            _SUBSCRIPTION + "/deliveries/{delivery_id}/retry",
            deliveries.retry,
            "retry_delivery",
            "Deliver again",
            (204, 400, 404, 503),
            Access("subscription:retry_delivery", Verb.MANAGE),
        ),
        Route(
            "POST",
            _SUBSCRIPTION + "/replay",
            deliveries.replay,
            "replay_messages",
            "Deliver a span of time again",
            (200, 400, 404, 413, 503),
            Access("subscription:replay", Verb.MANAGE),
            body="Replay",
            answer="Replayed",
        ),
        Route(
            "POST",
            _SUBSCRIPTION + "/ping",
            deliveries.ping,
            "ping_subscription",
            "Send a test notification",
            (200, 400, 404, 503),
            Access("subscription:ping", Verb.MANAGE),
            answer="Pinged",
        ),
    )
