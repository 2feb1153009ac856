"""Topics: list, count and post to; the rest is as for queues, and so are their messages."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from zaqar_lite.api import documents
from zaqar_lite.api.request import Parameter, Request, Response, Route
from zaqar_lite.api.routes import KEY, MARKER, POST, QUEUE_LIMIT, on_topics, route
from zaqar_lite.api.v2.messages import idempotency_key, posted_response
from zaqar_lite.api.v2.queues import NamedActions, named_page, page_query
from zaqar_lite.service.topics import Topics

_NEVER = {"list_messages": 0, "get_message": 200, "delete_message": 403, "delete_messages": 0}
"""The actions that answer topics too, and which status none gets of a queue without messages."""
_NOTHING = {"messages": {"claimed": 0, "free": 0, "total": 0}}


def topic_messages(routes: Iterable[Route]) -> Iterator[Route]:
    """The queues' routes that answer topics too: to them a topic is a queue without messages."""
    for one in on_topics(one for one in routes if one.name in _NEVER):
        never = _NEVER[one.name.removeprefix("topic_")]
        yield replace(one, statuses=tuple(status for status in one.statuses if status != never))


@dataclass(eq=False, repr=False)
class TopicActions(NamedActions):
    """The actions of topics, except for subscriptions."""

    named: Topics

    @route(
        "GET /v2/topics -> Topics",
        "topics:get_all read",
        (200,),
        (
            MARKER,
            QUEUE_LIMIT,
            Parameter("detailed", "Flag", "Show the metadata too."),
            Parameter("name", "Text", "Only topics with this in their name."),
        ),
        rel="topics",
    )
    async def list_topics(self, request: Request) -> Response:
        """List topics."""
        topics = await self.named.list_topics(request.project, **page_query(request))
        named = [(topic.name, self.named.shown(topic.metadata)) for topic in topics]
        return Response(200, named_page("topics", request, named))

    @route("GET /v2/topics/{topic_name}/stats -> TopicStats", "topics:stats read", (200,))
    async def topic_stats(self, request: Request) -> Response:
        """Count a topic's messages."""
        if await self.named.exists(request.queue):
            return Response(200, {"messages": {"total": 0}})
        return Response(200, _NOTHING)

    @route(
        "POST /v2/topics/{topic_name}/messages Messages -> Resources",
        "messages:create send",
        (201, 409),
        (KEY,),
        largest=POST,
        rel="topic_messages",
    )
    async def topic_post_messages(self, request: Request) -> Response:
        """Post messages to a topic."""
        topic = request.queue
        admitted = await self.named.admit(topic, request.size)
        posted = await self.named.post(
            topic,
            await documents.read_messages(request),
            client_id=request.client_id,
            batch_key=idempotency_key(request),
            admitted=admitted,
        )
        return await posted_response(request.path, posted)
