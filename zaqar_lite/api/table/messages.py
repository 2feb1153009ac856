"""The routes of messages."""

from zaqar_lite.api.routes import INVALID_REQUEST, UNABLE_TO_DELETE, Parameter, Route
from zaqar_lite.api.table.shared import DETAILS, LIMIT, MARKER, QUEUE, WAIT
from zaqar_lite.api.v2.messages import MessageHandlers
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

KEY = Parameter("Idempotency-Key", "Key", "A replay of the post gets the first answer.", "header")
_MESSAGES = QUEUE + "/messages"
_MESSAGE = _MESSAGES + "/{message_id}"


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
            (KEY,),
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
                MARKER,
                Parameter("until", "Text", "The marker of the last message to list."),
                LIMIT,
                WAIT,
                Parameter("echo", "Flag", "Show your own messages too."),
                Parameter("include_claimed", "Flag", "Show claimed messages too."),
                Parameter("include_delayed", "Flag", "Show delayed messages too."),
                Parameter("ids", "Text", "Comma list: get these instead."),
                DETAILS,
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
                WAIT,
                DETAILS,
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
            (DETAILS,),
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
            (DETAILS, Parameter("claim_id", "Text", "The claim that holds it: settle it.")),
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
            QUEUE + "/ranges",
            handlers.ranges,
            "queue_ranges",
            "Cut a queue into ranges",
            (200, 400, 503),
            Access("messages:ranges", Verb.READ),
            (Parameter("count", "RangeCount", "How many ranges at most."),),
            answer="Ranges",
        ),
    )
