"""The route of a queue's stream of events."""

from zaqar_lite.api.routes import Parameter, Route
from zaqar_lite.api.table.shared import DETAILS, QUEUE
from zaqar_lite.api.v2.events import EventHandlers
from zaqar_lite.domain.identity import Access, Verb


def event_routes(handlers: EventHandlers) -> tuple[Route, ...]:
    """The route of a queue's stream of events."""
    return (
        Route(
            "GET",
            QUEUE + "/events",
            handlers.follow,
            "stream_events",
            "Stream a queue's messages",
            (200, 400, 404, 429, 503),
            Access("messages:events", Verb.READ),
            (
                Parameter("marker", "Text", "The event, or the message, to begin behind."),
                Parameter("start", "StreamStart", "'first' or 'now'; without a marker."),
                Parameter("seconds", "StreamSeconds", "How long the stream lasts at most."),
                Parameter("echo", "Flag", "Show your own messages too."),
                Parameter("include_delayed", "Flag", "Show delayed messages at once."),
                DETAILS,
                Parameter("Last-Event-ID", "Text", "As the marker, before it.", "header"),
            ),
            hot=True,
            streams=True,
        ),
    )
