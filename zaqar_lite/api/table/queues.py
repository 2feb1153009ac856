"""The routes of queues as such."""

from zaqar_lite.api.routes import INVALID_BODY, INVALID_REQUEST, Parameter, Route
from zaqar_lite.api.table.shared import DETAILS, LIMIT, MARKER, QUEUE
from zaqar_lite.api.v2.queues import QueueHandlers
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

QUEUE_LIMIT = Parameter("limit", "QueueLimit", "How many queues to answer at most.")


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
                MARKER,
                QUEUE_LIMIT,
                Parameter("detailed", "Flag", "Show the metadata too."),
                Parameter("name", "Text", "Only queues with this in their name."),
                Parameter("with_count", "Flag", "Count the project's queues."),
            ),
            answer="Queues",
        ),
        Route(
            "PUT",
            QUEUE,
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
            QUEUE,
            handlers.get,
            "show_queue",
            "Show a queue's metadata",
            (200, 400, 503),
            Access("queues:get", Verb.READ),
            answer="Metadata",
        ),
        Route(
            "PATCH",
            QUEUE,
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
            QUEUE,
            handlers.delete,
            "delete_queue",
            "Delete a queue",
            (204, 400, 503),
            Access("queues:delete", Verb.MANAGE),
        ),
        Route(
            "GET",
            QUEUE + "/stats",
            handlers.stats,
            "queue_stats",
            "Count a queue's messages",
            (200, 400, 503),
            Access("queues:stats", Verb.READ),
            (DETAILS, Parameter("recent", "Flag", "Show the last hour too, as far as known.")),
            answer="Stats",
        ),
        Route(
            "POST",
            QUEUE + "/purge",
            handlers.purge,
            "purge_queue",
            "Purge a queue",
            (204, 400, 413, 503),
            Access("queues:purge", Verb.MANAGE),
            body="Purge",
        ),
        Route(
            "POST",
            QUEUE + "/share",
            handlers.share,
            "share_queue",
            "Make a pre-signed URL",
            (200, 400, 413, 503),
            Access("queues:share", Verb.MANAGE),
            body="Share",
            answer="SignedUrl",
        ),
        Route(
            "DELETE",
            QUEUE + "/share",
            handlers.unshare,
            "unshare_queue",
            "Revoke a queue's pre-signed URLs",
            (204, 400, 503),
            Access("queues:unshare", Verb.MANAGE),
        ),
        Route(
            "GET",
            QUEUE + "/history",
            handlers.history,
            "queue_history",
            "List done or failed messages",
            (200, 400, 503),
            Access("queues:history", Verb.READ),
            (Parameter("state", "HistoryState", "'done' or 'failed'."), MARKER, LIMIT),
            answer="History",
        ),
    )
