"""Topics: create, read, patch, delete, list, post to, count and purge."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from zaqar_lite.api import documents
from zaqar_lite.api.call import NO_CONTENT, Call, Parameter, Result, Route, warning
from zaqar_lite.api.routes import MARKER, QUEUE_LIMIT, on_topics, topic_twin
from zaqar_lite.api.v2.messages import (
    MessageActions,
    idempotency_key,
    stored,
)
from zaqar_lite.api.v2.queues import (
    QueueActions,
    named_page,
    purged_types,
    sent_metadata,
    sent_patch,
    wanted_page,
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


class TopicActions:
    """The actions under `/v2/topics`, except for subscriptions."""

    def __init__(
        self,
        topics: Topics,
        queues: QueueActions,
        subscriptions: Subscriptions,
        authorizer: Authorizer,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._subscriptions = subscriptions
        self._authorizer = authorizer

    @topic_twin(QueueActions.list_queues, parameters=_LISTED, answer="Topics")
    async def list_topics(self, call: Call) -> Result:
        """List topics."""
        topics = await self._topics.list_topics(call.project, **wanted_page(call))
        named = [(topic.name, self._topics.shown(topic.metadata)) for topic in topics]
        return Result(200, named_page("topics", call, named))

    @topic_twin(QueueActions.create_queue)
    async def create_topic(self, call: Call) -> Result:
        """Create a topic; one that exists stays as it is."""
        metadata = await sent_metadata(call, self._authorizer)
        created = await self._topics.create(call.queue, metadata)
        headers = ((b"location", call.path.encode()), *warning(unknown_keys(metadata)))
        return Result(201 if created else 204, b"", headers)

    @topic_twin(QueueActions.show_queue)
    async def show_topic(self, call: Call) -> Result:
        """Show a topic's metadata; a topic that is not there shows the defaults."""
        return Result(200, await self._topics.metadata(call.queue))

    @topic_twin(QueueActions.update_queue)
    async def update_topic(self, call: Call) -> Result:
        """Change a topic's metadata."""
        operations = await sent_patch(call, self._authorizer)
        metadata = await self._topics.patch(call.queue, operations)
        return Result(200, metadata, warning(unknown_keys(metadata)))

    @topic_twin(QueueActions.delete_queue)
    async def delete_topic(self, call: Call) -> Result:
        """Delete a topic."""
        await self._topics.delete(call.queue)
        return NO_CONTENT

    @topic_twin(QueueActions.queue_stats, parameters=(), answer="TopicStats")
    async def topic_stats(self, call: Call) -> Result:
        """Count a topic's messages."""
        if await self._topics.exists(call.queue):
            return Result(200, {"messages": {"total": 0}})
        return Result(200, _NOTHING)

    @topic_twin(QueueActions.purge_queue)
    async def purge_topic(self, call: Call) -> Result:
        """Purge a topic; what was posted is on its way."""
        types = await purged_types(call)
        if "subscriptions" in types:
            await self._subscriptions.purge(call.queue)
        return NO_CONTENT

    @topic_twin(QueueActions.share_queue)
    async def share_topic(self, call: Call) -> Result:
        """Make a pre-signed URL of a topic."""
        return await self._queues.share_queue(call)

    @topic_twin(QueueActions.unshare_queue)
    async def unshare_topic(self, call: Call) -> Result:
        """Revoke a topic's pre-signed URLs."""
        return await self._queues.unshare_queue(call)

    @topic_twin(MessageActions.post_messages, statuses=(201, 409))
    async def topic_post_messages(self, call: Call) -> Result:
        """Post messages to a topic."""
        topic = call.queue
        admitted = await self._topics.admit(topic, call.size)
        posted = await self._topics.post(
            topic,
            await documents.sent_messages(call, self._topics.turns),
            client_id=call.client_id,
            batch_key=idempotency_key(call),
            admitted=admitted,
        )
        if call.size > documents.LARGE_POST:
            await self._topics.turns.wait()
        return stored(call.path, posted)
