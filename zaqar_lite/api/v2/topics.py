"""Topics: create, read, patch, delete, list, post to, count and purge."""

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, Request, Response, warning
from zaqar_lite.api.render import to_json
from zaqar_lite.api.v2.messages import LARGE, idempotency_key, stored
from zaqar_lite.api.v2.queues import (
    named_page,
    purged_types,
    sent_metadata,
    sent_patch,
    wanted_page,
)
from zaqar_lite.domain.errors import Invalid, NotFound
from zaqar_lite.domain.metadata import unknown_keys
from zaqar_lite.domain.topics import path_of
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics

_NOTHING = b'{"messages":{"claimed":0,"free":0,"total":0}}'


class TopicHandlers:
    """The handlers under `/v2/topics`, except for subscriptions."""

    def __init__(self, topics: Topics, subscriptions: Subscriptions, authority: Authority) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._authority = authority

    async def list_topics(self, request: Request) -> Response:
        """List the project's topics."""
        found = query.parameters(request)
        topics = await self._topics.list_topics(request.project, **wanted_page(found))
        named = [(topic.name, self._topics.shown(topic.metadata)) for topic in topics]
        return Response(200, to_json(named_page("topics", found, named)))

    async def create(self, request: Request) -> Response:
        """Create a topic; one that exists stays as it is."""
        metadata = await sent_metadata(request, self._authority)
        created = await self._topics.create(queue_of(request), metadata)
        headers = ((b"location", request.path.encode()), *warning(unknown_keys(metadata)))
        return Response(201 if created else 204, b"", headers)

    async def get(self, request: Request) -> Response:
        """Read a topic's metadata; a topic that is not there shows the defaults."""
        return Response(200, to_json(await self._topics.metadata(queue_of(request))))

    async def patch(self, request: Request) -> Response:
        """Change a topic's metadata by a JSON patch."""
        operations = await sent_patch(request, self._authority)
        metadata = await self._topics.patch(queue_of(request), operations)
        return Response(200, to_json(metadata), warning(unknown_keys(metadata)))

    async def delete(self, request: Request) -> Response:
        """Delete a topic."""
        await self._topics.delete(queue_of(request))
        return NO_CONTENT

    async def stats(self, request: Request) -> Response:
        """Count a topic's messages: it keeps none."""
        if await self._topics.exists(queue_of(request)):
            return Response(200, b'{"messages":{"total":0}}')
        return Response(200, _NOTHING)

    async def purge(self, request: Request) -> Response:
        """Remove a topic's subscriptions; what was posted is on its way."""
        types = await purged_types(request)
        if "subscriptions" in types:
            await self._subscriptions.purge(queue_of(request))
        return NO_CONTENT

    async def post(self, request: Request) -> Response:
        """Post messages to the topic's subscriptions."""
        topic = queue_of(request)
        admitted = await self._topics.admit(topic, request.content_length)
        document = await documents.read(request)
        is_large = request.content_length > LARGE
        if is_large:
            await self._topics.turns.wait()
        drafts = documents.parse_messages(document)
        posted = await self._topics.post(
            topic,
            drafts,
            client_id=request.client_id,
            batch_key=idempotency_key(request),
            topic=admitted,
        )
        if is_large:
            await self._topics.turns.wait()
        return stored(path_of(topic), posted)

    async def list_messages(self, request: Request) -> Response:
        """List messages: a topic keeps none, so those that are asked for by id are not there."""
        if "ids" in query.parameters(request):
            raise NotFound("None of these messages exists: a topic keeps none.")
        return Response(200, b'{"messages":[],"links":[]}')

    async def get_message(self, request: Request) -> Response:
        """Answer that there is no such message."""
        raise NotFound(f"Message {request.path_values[1]!r} does not exist: a topic keeps none.")

    async def delete_message(self, _: Request) -> Response:
        """Delete nothing: there is nothing."""
        return NO_CONTENT

    async def delete_messages(self, request: Request) -> Response:
        """Delete or pop nothing: there is nothing."""
        found = query.parameters(request)
        if ("ids" in found) == ("pop" in found):
            raise Invalid("Exactly one of the parameters 'ids' and 'pop' must be given.")
        return NO_CONTENT if "ids" in found else Response(200, b'{"messages":[]}')
