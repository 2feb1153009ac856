"""What frames are answered otherwise than requests: no overlay of defaults, no links, 404."""

from typing import Any

from zaqar_lite.api import query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.api.v2.subscriptions import SubscriptionHandlers
from zaqar_lite.domain.errors import Conflict
from zaqar_lite.domain.metadata import visible
from zaqar_lite.domain.models import Message
from zaqar_lite.service.queues import Queues

_DEFAULT_LIMIT = 10


class ActionHandlers:
    """The handlers that actions name."""

    def __init__(self, queues: Queues, subscriptions: SubscriptionHandlers) -> None:
        self._queues = queues
        self._subscriptions = subscriptions

    async def list_queues(self, request: Request) -> Response:
        """List the project's queues, their metadata as it is stored."""
        found = query.parameters(request)
        records = await self._queues.list_queues(
            request.project,
            marker=query.text(found, "marker"),
            limit=query.whole(found, "limit", _DEFAULT_LIMIT),
            name_contains=None,
            metadata={},
        )
        shown: list[dict[str, Any]] = []
        for record in records:
            entry: dict[str, Any] = {"name": record.ref.name}
            if query.boolean(found, "detailed"):
                entry["metadata"] = visible(record.metadata)
            shown.append(entry)
        return Response(200, to_json({"queues": shown}))

    async def get_queue(self, request: Request) -> Response:
        """Read a queue's metadata as it is stored; a queue that is not there has none."""
        metadata = await self._queues.stored_metadata(queue_of(request))
        return Response(200, to_json(metadata or {}))

    async def subscribe(self, request: Request) -> Response:
        """Subscribe; a subscriber that is there is a conflict, whether it has confirmed or not."""
        response = await self._subscriptions.create(request)
        if b'"secret"' not in response.body:
            raise Conflict("Such a subscription exists already.")
        return response

    async def stats(self, request: Request) -> Response:
        """Count a queue's messages; 404 with zeros where it is not there."""
        queue = queue_of(request)
        if await self._queues.stored_metadata(queue) is None:
            return Response(404, to_json({"messages": {"claimed": 0, "free": 0, "total": 0}}))
        stats = await self._queues.stats(queue)
        counts: dict[str, Any] = {
            "claimed": stats.claimed,
            "free": stats.ready + stats.delayed,
            "total": stats.total,
        }
        for name, message in (("oldest", stats.oldest), ("newest", stats.newest)):
            if message is not None:
                counts[name] = _end(message)
        return Response(200, to_json({"messages": counts}))


def _end(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "age": message.age_ms // 1000,
        "created": instant(message.created_at),
    }
