"""The routes of v2, in the order of the home document's resources."""

from zaqar_lite.api.routes import (
    INVALID_BODY,
    INVALID_REQUEST,
    SMALL_BODY,
    UNABLE_TO_DELETE,
    Parameter,
    Route,
)
from zaqar_lite.api.v2.claims import ClaimHandlers
from zaqar_lite.api.v2.deliveries import DeliveryHandlers
from zaqar_lite.api.v2.keys import KeyHandlers
from zaqar_lite.api.v2.messages import MessageHandlers
from zaqar_lite.api.v2.queues import QueueHandlers
from zaqar_lite.api.v2.service import ServiceHandlers
from zaqar_lite.api.v2.settling import SettlingHandlers
from zaqar_lite.api.v2.subscriptions import SubscriptionHandlers
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

_LARGEST_SETTLEMENT = 16_384
"""Bytes of one: its reason and detail, each character of which JSON may write with six."""
_DETAILS = Parameter("details", "Flag", "Add what Zaqar's own keys leave out.")
_MARKER = Parameter("marker", "Text", "Where the page before ended; opaque.")
_LIMIT = Parameter("limit", "PageLimit", "How many entries to answer at most.")
_CLAIM_LIMIT = Parameter("limit", "ClaimLimit", "How many messages to claim at most.")
_SUBSCRIPTION_LIMIT = Parameter(
    "limit", "SubscriptionLimit", "How many subscriptions to answer at most."
)
_QUEUE_LIMIT = Parameter("limit", "QueueLimit", "How many queues to answer at most.")
_KEY = Parameter("Idempotency-Key", "Key", "A replay of the post gets the first answer.", "header")
_WAIT = Parameter("wait", "Wait", "Seconds to wait while there is nothing.")
_QUEUE = "/v2/queues/{queue_name}"
_MESSAGES = _QUEUE + "/messages"
_MESSAGE = _MESSAGES + "/{message_id}"
_CLAIM = _QUEUE + "/claims/{claim_id}"
_SUBSCRIPTIONS = _QUEUE + "/subscriptions"
_SUBSCRIPTION = _SUBSCRIPTIONS + "/{subscription_id}"
_LARGEST_SUBSCRIPTION = 65_536
_KEY_PATH = "/v2/keys/{key_id}"
_LARGEST_KEY = 16_384


def service_routes(handlers: ServiceHandlers, *, admin: bool) -> tuple[Route, ...]:
    """The routes that are about no queue; health is there in admin mode only."""
    routes = [
        Route(
            "GET",
            "/",
            handlers.versions,
            "versions",
            "List the API versions",
            (300,),
            Access(None, None),
            public=True,
            needs_store=False,
        ),
        Route(
            "GET",
            "/v2/",
            handlers.home,
            "home",
            "Show the home document",
            (200,),
            Access(None, None),
            needs_store=False,
        ),
        Route(
            "GET",
            "/v2/ping",
            handlers.ping,
            "ping",
            "Ping the store",
            (204, 503),
            Access("ping:get", None),
        ),
        Route(
            "HEAD",
            "/v2/ping",
            handlers.ping,
            "ping_head",
            "Ping the server",
            (204,),
            Access("ping:get", None),
            needs_store=False,
        ),
    ]
    if admin:
        routes.append(
            Route(
                "GET",
                "/v2/health",
                handlers.health,
                "health",
                "Check health",
                (200, 503),
                Access("health:get", Verb.ADMIN),
            )
        )
    return tuple(routes)


def queue_routes(handlers: QueueHandlers, limits: Limits) -> tuple[Route, ...]:
    """The routes of queues as such."""
    largest = limits.max_queue_metadata
    return (
        Route(
            "GET",
            "/v2/queues",
            handlers.list_queues,
            "list_queues",
            "List queues",
            (200, 400, 503),
            Access("queues:get_all", Verb.READ),
            (
                _MARKER,
                _QUEUE_LIMIT,
                Parameter("detailed", "Flag", "Show the metadata too."),
                Parameter("name", "Text", "Only queues with this in their name."),
                Parameter("with_count", "Flag", "Count the project's queues."),
            ),
            answer="Queues",
        ),
        Route(
            "PUT",
            _QUEUE,
            handlers.create,
            "create_queue",
            "Create a queue",
            (201, 204, 400, 503),
            Access("queues:create", Verb.MANAGE),
            body="Metadata",
            largest_body=largest,
            too_large_title=INVALID_REQUEST,
        ),
        Route(
            "GET",
            _QUEUE,
            handlers.get,
            "show_queue",
            "Show a queue's metadata",
            (200, 400, 503),
            Access("queues:get", Verb.READ),
            answer="Metadata",
        ),
        Route(
            "PATCH",
            _QUEUE,
            handlers.patch,
            "update_queue",
            "Change a queue's metadata",
            (200, 400, 404, 409, 415, 503),
            Access("queues:update", Verb.MANAGE),
            body="MetadataPatch",
            answer="Metadata",
            invalid_title=INVALID_BODY,
            largest_body=largest,
            too_large_title=INVALID_BODY,
        ),
        Route(
            "DELETE",
            _QUEUE,
            handlers.delete,
            "delete_queue",
            "Delete a queue",
            (204, 400, 503),
            Access("queues:delete", Verb.MANAGE),
        ),
        Route(
            "GET",
            _QUEUE + "/stats",
            handlers.stats,
            "queue_stats",
            "Count a queue's messages",
            (200, 400, 503),
            Access("queues:stats", Verb.READ),
            (_DETAILS,),
            answer="Stats",
        ),
        Route(
            "POST",
            _QUEUE + "/purge",
            handlers.purge,
            "purge_queue",
            "Purge a queue",
            (204, 400, 413, 503),
            Access("queues:purge", Verb.MANAGE),
            body="Purge",
        ),
        Route(
            "POST",
            _QUEUE + "/share",
            handlers.share,
            "share_queue",
            "Make a pre-signed URL",
            (200, 400, 413),
            Access("queues:share", Verb.MANAGE),
            body="Share",
            answer="SignedUrl",
        ),
        Route(
            "GET",
            _QUEUE + "/history",
            handlers.history,
            "queue_history",
            "List done or failed messages",
            (200, 400, 503),
            Access("queues:history", Verb.READ),
            (Parameter("state", "HistoryState", "'done' or 'failed'."), _MARKER, _LIMIT),
            answer="History",
        ),
    )


def message_routes(handlers: MessageHandlers, limits: Limits) -> tuple[Route, ...]:
    """The routes of messages; a queue may allow smaller posts than its server."""
    largest = limits.max_messages_post_size
    return (
        Route(
            "POST",
            _MESSAGES,
            handlers.post,
            "post_messages",
            "Post messages",
            (201, 400, 404, 409, 503),
            Access("messages:create", Verb.SEND),
            (_KEY,),
            body="Messages",
            answer="Resources",
            hot=True,
            largest_body=largest,
            too_large_title=INVALID_REQUEST,
        ),
        Route(
            "GET",
            _MESSAGES,
            handlers.list_or_get,
            "list_messages",
            "List messages, or get some by their ids",
            (200, 400, 404, 429, 503),
            Access("messages:get_all", Verb.READ),
            (
                _MARKER,
                Parameter("until", "Text", "The marker of the last message to list."),
                _LIMIT,
                _WAIT,
                Parameter("echo", "Flag", "Show your own messages too."),
                Parameter("include_claimed", "Flag", "Show claimed messages too."),
                Parameter("include_delayed", "Flag", "Show delayed messages too."),
                Parameter("ids", "Text", "Comma list: get these instead."),
                _DETAILS,
            ),
            answer="MessageList",
            hot=True,
        ),
        Route(
            "DELETE",
            _MESSAGES,
            handlers.delete_many,
            "delete_messages",
            "Delete messages by their ids, or pop some",
            (200, 204, 400, 403, 429, 503),
            Access("messages:delete_all", Verb.MANAGE, frozenset({"pop", "claim_ids"})),
            (
                Parameter("ids", "Text", "Comma list of the messages to delete."),
                Parameter("claim_ids", "Text", "Comma list: delete only what these hold."),
                Parameter("pop", "ClaimLimit", "How many messages to pop."),
                _WAIT,
            ),
            answer="Popped",
            hot=True,
        ),
        Route(
            "GET",
            _MESSAGE,
            handlers.get,
            "get_message",
            "Get a message",
            (200, 400, 404, 503),
            Access("messages:get", Verb.READ),
            (_DETAILS,),
            answer="Message",
            hot=True,
        ),
        Route(
            "PATCH",
            _MESSAGE,
            handlers.edit,
            "edit_message",
            "Edit a delayed message, or settle a claimed one",
            (200, 204, 400, 403, 404, 409, 503),
            Access("messages:update", Verb.MANAGE, frozenset({"claim_id"})),
            (_DETAILS, Parameter("claim_id", "Text", "The claim that holds it: settle it.")),
            body="Edit",
            answer="Message",
            hot=True,
            largest_body=largest,
            too_large_title=INVALID_REQUEST,
        ),
        Route(
            "DELETE",
            _MESSAGE,
            handlers.delete,
            "delete_message",
            "Delete a message",
            (204, 400, 403, 503),
            Access("messages:delete", Verb.MANAGE, frozenset({"claim_id"})),
            (Parameter("claim_id", "Text", "The claim that holds the message."),),
            hot=True,
            invalid_title=UNABLE_TO_DELETE,
        ),
        Route(
            "GET",
            _QUEUE + "/ranges",
            handlers.ranges,
            "queue_ranges",
            "Cut a queue into ranges",
            (200, 400, 503),
            Access("messages:ranges", Verb.READ),
            (Parameter("count", "RangeCount", "How many ranges at most."),),
            answer="Ranges",
        ),
    )


def claim_routes(
    handlers: ClaimHandlers, settling: SettlingHandlers, limits: Limits
) -> tuple[Route, ...]:
    """The routes of claims; settling is there where the store can."""
    largest = SMALL_BODY + limits.max_messages_per_claim_or_pop * _LARGEST_SETTLEMENT
    routes = [
        Route(
            "POST",
            _QUEUE + "/claims",
            handlers.create,
            "claim_messages",
            "Claim messages",
            (201, 204, 400, 413, 429, 503),
            Access("claims:create", Verb.RECEIVE),
            (_CLAIM_LIMIT, _WAIT, _DETAILS),
            body="Claim",
            answer="Claimed",
            hot=True,
        ),
        Route(
            "GET",
            _CLAIM,
            handlers.get,
            "show_claim",
            "Show a claim",
            (200, 400, 404, 503),
            Access("claims:get", Verb.RECEIVE),
            (_DETAILS,),
            answer="ClaimShown",
            hot=True,
        ),
        Route(
            "PATCH",
            _CLAIM,
            handlers.renew,
            "renew_claim",
            "Renew a claim",
            (204, 400, 404, 413, 503),
            Access("claims:update", Verb.RECEIVE),
            body="Claim",
            hot=True,
        ),
        Route(
            "DELETE",
            _CLAIM,
            handlers.release,
            "release_claim",
            "Release a claim",
            (204, 400, 503),
            Access("claims:delete", Verb.RECEIVE),
            (Parameter("delay", "Delay", "Seconds until its messages are ready again."),),
            hot=True,
        ),
    ]
    if settling.works:
        routes.append(
            Route(
                "POST",
                _CLAIM + "/settle",
                settling.settle_many,
                "settle_messages",
                "Settle messages of a claim",
                (200, 400, 413, 503),
                Access("claims:settle", Verb.RECEIVE),
                body="Settlements",
                answer="Settled",
                largest_body=largest,
                hot=True,
            )
        )
    return tuple(routes)


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
            (_MARKER, _SUBSCRIPTION_LIMIT, _DETAILS),
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
            (_DETAILS,),
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
            (Parameter("state", "DeliveryState", "'last' or 'failed'."), _MARKER, _LIMIT),
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
            _SUBSCRIPTION + "/ping",
            deliveries.ping,
            "ping_subscription",
            "Send a test notification",
            (200, 400, 404, 503),
            Access("subscription:ping", Verb.MANAGE),
            answer="Pinged",
        ),
    )


def key_routes(handlers: KeyHandlers) -> tuple[Route, ...]:
    """The routes of keys; they are there where the server knows keys."""
    return (
        Route(
            "POST",
            "/v2/keys",
            handlers.create,
            "create_key",
            "Create a key",
            (201, 400, 403, 413, 503),
            Access("keys:create", Verb.ADMIN),
            body="NewKey",
            answer="MadeKey",
            largest_body=_LARGEST_KEY,
        ),
        Route(
            "GET",
            "/v2/keys",
            handlers.list_keys,
            "list_keys",
            "List keys",
            (200, 400, 403, 503),
            Access("keys:get_all", Verb.ADMIN),
            (_MARKER, Parameter("limit", "KeyLimit", "How many keys to answer at most.")),
            answer="Keys",
        ),
        Route(
            "GET",
            _KEY_PATH,
            handlers.get,
            "show_key",
            "Show a key",
            (200, 400, 403, 404, 503),
            Access("keys:get", Verb.ADMIN),
            answer="Key",
        ),
        Route(
            "PATCH",
            _KEY_PATH,
            handlers.change,
            "change_key",
            "Disable a key, or let it work again",
            (200, 400, 403, 404, 413, 503),
            Access("keys:update", Verb.ADMIN),
            body="KeyChange",
            answer="Key",
        ),
        Route(
            "POST",
            _KEY_PATH + "/rotate",
            handlers.rotate,
            "rotate_key",
            "Make a key like this one, which then ends",
            (201, 400, 403, 404, 413, 503),
            Access("keys:rotate", Verb.ADMIN),
            body="KeyOverlap",
            answer="MadeKey",
        ),
        Route(
            "DELETE",
            _KEY_PATH,
            handlers.delete,
            "delete_key",
            "Delete a key",
            (204, 400, 403, 503),
            Access("keys:delete", Verb.ADMIN),
        ),
    )
