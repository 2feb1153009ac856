"""The routes of topics."""

from dataclasses import replace

from zaqar_lite.api.routes import INVALID_BODY, INVALID_REQUEST, UNABLE_TO_DELETE, Parameter, Route
from zaqar_lite.api.table.messages import KEY
from zaqar_lite.api.table.queues import QUEUE_LIMIT
from zaqar_lite.api.table.shared import MARKER, QUEUE
from zaqar_lite.api.table.subscriptions import subscription_routes
from zaqar_lite.api.v2.deliveries import DeliveryHandlers
from zaqar_lite.api.v2.queues import QueueHandlers
from zaqar_lite.api.v2.subscriptions import SubscriptionHandlers
from zaqar_lite.api.v2.topics import TopicHandlers
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

_TOPIC = "/v2/topics/{topic_name}"
_MESSAGES = _TOPIC + "/messages"
_IDS = Parameter("ids", "Text", "Comma list of messages.")
_NO_HISTORY = "replay_messages"
"""What a topic's subscription can't: nothing is kept that could be sent again."""


def topic_routes(
    handlers: TopicHandlers,
    queues: QueueHandlers,
    subscriptions: SubscriptionHandlers,
    deliveries: DeliveryHandlers,
    limits: Limits,
) -> tuple[Route, ...]:
    """The routes of topics, of their messages and of their subscriptions."""
    return (
        *_topics(handlers, queues, limits),
        *_messages(handlers, limits),
        *(
            replace(
                route,
                template=route.template.replace(QUEUE, _TOPIC),
                name=f"topic_{route.name}",
                summary=route.summary.replace("queue", "topic"),
            )
            for route in subscription_routes(subscriptions, deliveries)
            if route.name != _NO_HISTORY
        ),
    )


def _topics(handlers: TopicHandlers, queues: QueueHandlers, limits: Limits) -> tuple[Route, ...]:
    largest = limits.max_queue_metadata
    return (
        Route(
            "GET",
            "/v2/topics",
            handlers.list_topics,
            "list_topics",
            "List topics",
            (200, 400, 503),
            Access("topics:get_all", Verb.READ),
            (
                MARKER,
                QUEUE_LIMIT,
                Parameter("detailed", "Flag", "Show the metadata too."),
                Parameter("name", "Text", "Only topics with this in their name."),
            ),
            answer="Topics",
        ),
        Route(
            "PUT",
            _TOPIC,
            handlers.create,
            "create_topic",
            "Create a topic",
            (201, 204, 400, 503),
            Access("topics:create", Verb.MANAGE),
            body="Metadata",
            largest_body=largest,
            too_large_title=INVALID_REQUEST,
        ),
        Route(
            "GET",
            _TOPIC,
            handlers.get,
            "show_topic",
            "Show a topic's metadata",
            (200, 400, 503),
            Access("topics:get", Verb.READ),
            answer="Metadata",
        ),
        Route(
            "PATCH",
            _TOPIC,
            handlers.patch,
            "update_topic",
            "Change a topic's metadata",
            (200, 400, 404, 409, 415, 503),
            Access("topics:update", Verb.MANAGE),
            body="MetadataPatch",
            answer="Metadata",
            invalid_title=INVALID_BODY,
            largest_body=largest,
            too_large_title=INVALID_BODY,
        ),
        Route(
            "DELETE",
            _TOPIC,
            handlers.delete,
            "delete_topic",
            "Delete a topic",
            (204, 400, 503),
            Access("topics:delete", Verb.MANAGE),
        ),
        Route(
            "GET",
            _TOPIC + "/stats",
            handlers.stats,
            "topic_stats",
            "Count a topic's messages",
            (200, 400, 503),
            Access("topics:stats", Verb.READ),
            answer="TopicStats",
        ),
        Route(
            "POST",
            _TOPIC + "/purge",
            handlers.purge,
            "purge_topic",
            "Purge a topic",
            (204, 400, 413, 503),
            Access("topics:purge", Verb.MANAGE),
            body="Purge",
        ),
        Route(
            "POST",
            _TOPIC + "/share",
            queues.share,
            "share_topic",
            "Make a pre-signed URL of a topic",
            (200, 400, 413, 503),
            Access("topics:share", Verb.MANAGE),
            body="Share",
            answer="SignedUrl",
        ),
        Route(
            "DELETE",
            _TOPIC + "/share",
            queues.unshare,
            "unshare_topic",
            "Revoke a topic's pre-signed URLs",
            (204, 400, 503),
            Access("topics:unshare", Verb.MANAGE),
        ),
    )


def _messages(handlers: TopicHandlers, limits: Limits) -> tuple[Route, ...]:
    return (
        Route(
            "POST",
            _MESSAGES,
            handlers.post,
            "topic_post_messages",
            "Post messages to a topic",
            (201, 400, 409, 503),
            Access("messages:create", Verb.SEND),
            (KEY,),
            body="Messages",
            answer="Resources",
            hot=True,
            largest_body=limits.max_messages_post_size,
            too_large_title=INVALID_REQUEST,
        ),
        Route(
            "GET",
            _MESSAGES,
            handlers.list_messages,
            "topic_list_messages",
            "List a topic's messages",
            (200, 400, 404, 503),
            Access("messages:get_all", Verb.READ),
            (_IDS,),
            answer="MessageList",
        ),
        Route(
            "DELETE",
            _MESSAGES,
            handlers.delete_messages,
            "topic_delete_messages",
            "Delete a topic's messages",
            (200, 204, 400, 503),
            Access("messages:delete_all", Verb.MANAGE, frozenset({"pop", "claim_ids"})),
            (_IDS, Parameter("pop", "ClaimLimit", "How many messages to pop.")),
            answer="Popped",
        ),
        Route(
            "GET",
            _MESSAGES + "/{message_id}",
            handlers.get_message,
            "topic_get_message",
            "Get a topic's message",
            (400, 404, 503),
            Access("messages:get", Verb.READ),
        ),
        Route(
            "DELETE",
            _MESSAGES + "/{message_id}",
            handlers.delete_message,
            "topic_delete_message",
            "Delete a topic's message",
            (204, 400, 503),
            Access("messages:delete", Verb.MANAGE, frozenset({"claim_id"})),
            invalid_title=UNABLE_TO_DELETE,
        ),
    )
