"""Topics: create, read, patch, delete, list, post to, count and purge."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from zaqar_lite.api import documents
from zaqar_lite.api.request import NO_CONTENT, Parameter, Request, Response, Route, warning
from zaqar_lite.api.routes import MARKER, QUEUE_LIMIT, on_topics, topic_twin
from zaqar_lite.api.v2.messages import (
    MessageActions,
    idempotency_key,
    posted_response,
)
from zaqar_lite.api.v2.queues import (
    QueueActions,
    named_page,
    page_query,
    purged_types,
    read_metadata,
    read_patch,
)
from zaqar_lite.domain.metadata import unknown_keys
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics

_LISTED = (
    MARKER,
    QUEUE_LIMIT,
    Parameter("detailed", "Flag", "Show the metadata too."),
    Parameter("name", "Text", "Only topics with this in their name."),
)
_NEVER = {"list_messages": 0, "get_message": 200, "delete_message": 403, "delete_messages": 0}
"""The actions that answer topics too, and which status none gets of a queue without messages."""
_NOTHING = {"messages": {"claimed": 0, "free": 0, "total": 0}}


def topic_messages(routes: Iterable[Route]) -> Iterator[Route]:
    """The queues' routes that answer topics too: to them a topic is a queue without messages."""
    for one in on_topics(one for one in routes if one.name in _NEVER):
        never = _NEVER[one.name.removeprefix("topic_")]
        yield replace(one, statuses=tuple(status for status in one.statuses if status != never))


@dataclass(eq=False, repr=False)
class TopicActions:
    """The actions under `/v2/topics`, except for subscriptions."""

    topics: Topics
    queues: QueueActions
    subscriptions: Subscriptions
    authorizer: Authorizer

    @topic_twin(QueueActions.list_queues, parameters=_LISTED, answer="Topics")
    async def list_topics(self, request: Request) -> Response:
        """List topics."""
        topics = await self.topics.list_topics(request.project, **page_query(request))
        named = [(topic.name, self.topics.shown(topic.metadata)) for topic in topics]
        return Response(200, named_page("topics", request, named))

    @topic_twin(QueueActions.create_queue)
    async def create_topic(self, request: Request) -> Response:
        """Create a topic; one that exists stays as it is."""
        metadata = read_metadata(request, self.authorizer)
        created = await self.topics.create(request.queue, metadata)
        headers = ((b"location", request.path.encode()), *warning(unknown_keys(metadata)))
        return Response(201 if created else 204, b"", headers)

    @topic_twin(QueueActions.show_queue)
    async def show_topic(self, request: Request) -> Response:
        """Show a topic's metadata; a topic that is not there shows the defaults."""
        return Response(200, await self.topics.metadata(request.queue))

    @topic_twin(QueueActions.update_queue)
    async def update_topic(self, request: Request) -> Response:
        """Change a topic's metadata."""
        operations = read_patch(request, self.authorizer)
        metadata = await self.topics.patch(request.queue, operations)
        return Response(200, metadata, warning(unknown_keys(metadata)))

    @topic_twin(QueueActions.delete_queue)
    async def delete_topic(self, request: Request) -> Response:
        """Delete a topic."""
        await self.topics.delete(request.queue)
        return NO_CONTENT

    @topic_twin(QueueActions.queue_stats, parameters=(), answer="TopicStats")
    async def topic_stats(self, request: Request) -> Response:
        """Count a topic's messages."""
        if await self.topics.exists(request.queue):
            return Response(200, {"messages": {"total": 0}})
        return Response(200, _NOTHING)

    @topic_twin(QueueActions.purge_queue)
    async def purge_topic(self, request: Request) -> Response:
        """Purge a topic; what was posted is on its way."""
        types = purged_types(request)
        if "subscriptions" in types:
            await self.subscriptions.purge(request.queue)
        return NO_CONTENT

    @topic_twin(QueueActions.share_queue)
    async def share_topic(self, request: Request) -> Response:
        """Make a pre-signed URL of a topic."""
        return await self.queues.share_queue(request)

    @topic_twin(QueueActions.unshare_queue)
    async def unshare_topic(self, request: Request) -> Response:
        """Revoke a topic's pre-signed URLs."""
        return await self.queues.unshare_queue(request)

    @topic_twin(MessageActions.post_messages, statuses=(201, 409), rel="topic_messages")
    async def topic_post_messages(self, request: Request) -> Response:
        """Post messages to a topic."""
        topic = request.queue
        admitted = await self.topics.admit(topic, request.size)
        posted = await self.topics.post(
            topic,
            await documents.read_messages(request, self.topics.turns),
            client_id=request.client_id,
            batch_key=idempotency_key(request),
            admitted=admitted,
        )
        if request.size > documents.LARGE_POST:
            await self.topics.turns.wait()
        return posted_response(request.path, posted)
