"""Messages: post, list, get, edit, delete, pop, and the ranges for parallel readers."""

from collections.abc import Sequence

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, HttpError, Request, Response, warning
from zaqar_lite.api.patience import Patience
from zaqar_lite.api.render import Renderer, to_json
from zaqar_lite.api.v2.settling import SettlingHandlers
from zaqar_lite.domain.errors import Invalid, NotFound
from zaqar_lite.domain.ids import format_marker
from zaqar_lite.domain.models import Message, Page, QueueRef
from zaqar_lite.domain.posts import Posted
from zaqar_lite.service.messages import Messages

DEFAULT_LIMIT = 10
LARGE = 32_768
"""Bytes: a larger post is read and answered in turns with other large ones."""

_LONGEST_LOCATION = 7_680
"""Bytes: many clients and proxies take 8 KiB of headers."""


class MessageHandlers:
    """The handlers under `/v2/queues/{queue_name}/messages`."""

    def __init__(
        self,
        messages: Messages,
        settling: SettlingHandlers,
        patience: Patience,
        renderer: Renderer,
    ) -> None:
        self._messages = messages
        self._patience = patience
        self._settling = settling
        self._renderer = renderer

    async def post(self, request: Request) -> Response:
        """Post one or more messages."""
        queue = queue_of(request)
        size = request.content_length
        policy = await self._messages.admit(queue, size)
        document = await documents.read(request)
        if size > LARGE:
            await self._messages.turns.wait()
        drafts = documents.parse_messages(document)
        posted, warned = await self._messages.post(
            queue,
            drafts,
            size=size,
            client_id=request.client_id,
            batch_key=(idempotency_key(request) if b"idempotency-key" in request.headers else None),
            policy=policy,
        )
        if size > LARGE:
            await self._messages.turns.wait()
        return stored(_path(queue), posted, warned)

    async def list_or_get(self, request: Request) -> Response:
        """List messages by page, or fetch some by their ids."""
        found = query.parameters(request)
        details = query.boolean(found, "details")
        if "ids" in found:
            return await self._get_many(request, found["ids"], details)
        return await self._list(request, found, details)

    async def get(self, request: Request) -> Response:
        """Fetch one message."""
        queue = queue_of(request)
        details = query.boolean(query.parameters(request), "details")
        messages = await self._messages.get(queue, request.path_values[1:], details=details)
        if not messages:
            raise NotFound(f"Message {request.path_values[1]!r} does not exist.")
        shown = self._renderer.message(_path(queue), messages[0], details=details)
        return Response(200, to_json(shown))

    async def edit(self, request: Request) -> Response:
        """Change a message that is still delayed; with a claim_id, settle it."""
        if "claim_id" in query.parameters(request):
            return await self._settling.settle_one(request)
        queue = queue_of(request)
        size = request.content_length
        details = query.boolean(query.parameters(request), "details")
        policy = await self._messages.admit(queue, size)
        fields = documents.parse_edit(await documents.read(request))
        message = await self._messages.edit(
            queue,
            request.path_values[1],
            body=fields.get("body"),
            ttl=fields.get("ttl"),
            delay=fields.get("delay"),
            size=size,
            policy=policy,
        )
        return Response(
            200, to_json(self._renderer.message(_path(queue), message, details=details))
        )

    async def delete(self, request: Request) -> Response:
        """Delete one message, by its claim if it is claimed."""
        claim_id = query.text(query.parameters(request), "claim_id")
        await self._messages.delete(queue_of(request), request.path_values[1], claim_id)
        return NO_CONTENT

    async def delete_many(self, request: Request) -> Response:
        """Delete messages by their ids, or pop some."""
        queue = queue_of(request)
        found = query.parameters(request)
        if ("ids" in found) == ("pop" in found):
            raise Invalid("Exactly one of the parameters 'ids' and 'pop' must be given.")
        if "ids" in found:
            await self._messages.delete_many(queue, found["ids"], found.get("claim_ids"))
            return NO_CONTENT
        limit, seconds = query.whole(found, "pop", 0), self._patience.seconds(found)
        details = query.boolean(found, "details")

        async def ask() -> Sequence[Message] | None:
            return await self._messages.pop(queue, limit, details=details) or None

        popped = await self._patience.ask(request, queue, seconds, ask)
        shown = [self._renderer.popped(message, details=details) for message in popped or ()]
        return Response(200, to_json({"messages": shown}))

    async def ranges(self, request: Request) -> Response:
        """Cut a queue into ranges of about equal size, for readers side by side."""
        found = query.parameters(request)
        count = query.whole(found, "count", DEFAULT_LIMIT)
        positions = await self._messages.split(queue_of(request), count)
        markers = [format_marker(position) for position in positions]
        shown: list[dict[str, str]] = [{} for _ in markers]
        for index, marker in enumerate(markers[:-1]):
            shown[index]["until"] = marker
            shown[index + 1]["marker"] = marker
        return Response(200, to_json({"ranges": shown}))

    async def _get_many(self, request: Request, ids: Sequence[str], details: bool) -> Response:
        queue = queue_of(request)
        messages = await self._messages.get(queue, ids, details=details)
        if not messages:
            raise NotFound("None of these messages exists.")
        shown = self._renderer.messages(_path(queue), messages, details=details)
        return Response(200, to_json({"messages": shown}))

    async def _list(self, request: Request, found: dict[str, list[str]], details: bool) -> Response:
        queue = queue_of(request)
        echo = query.boolean(found, "echo")
        marker, until = query.text(found, "marker"), query.text(found, "until")
        limit, seconds = query.whole(found, "limit", DEFAULT_LIMIT), self._patience.seconds(found)
        include_claimed = query.boolean(found, "include_claimed")
        include_delayed = query.boolean(found, "include_delayed")

        async def ask() -> tuple[Page, bool] | None:
            listed = await self._messages.list_messages(
                queue,
                marker=marker,
                until=until,
                limit=limit,
                exclude_client_id=None if echo else request.client_id,
                include_claimed=include_claimed,
                include_delayed=include_delayed,
                details=details,
            )
            return listed if listed[0].messages or not seconds else None

        listed = await self._patience.ask(request, queue, seconds, ask, reads=True)
        page, delayed = listed or (Page((), None), False)
        path = _path(queue)
        if not page.messages or page.marker is None:
            return Response(200, b'{"messages":[],"links":[]}')
        href = query.link(
            f"{path}/messages", _link_parameters(found, delayed, format_marker(page.marker))
        )
        shown = self._renderer.messages(path, page.messages, details=details)
        return Response(200, to_json({"messages": shown, "links": [{"rel": "next", "href": href}]}))


def _path(queue: QueueRef) -> str:
    return f"/v2/queues/{queue.name}"


def _link_parameters(
    found: dict[str, list[str]], delayed: bool, marker: str
) -> list[tuple[str, str]]:
    """The next link's parameters: those that the client gave, and what upstream adds."""
    pairs: list[tuple[str, str]] = []
    if "marker" in found:
        pairs.append(("marker", marker))
    if "limit" in found:
        pairs.append(("limit", found["limit"][-1]))
    pairs += [
        (name, query.flag(query.boolean(found, name)))
        for name in ("echo", "include_claimed")
        if name in found
    ]
    if delayed or "include_delayed" in found:
        pairs.append(("include_delayed", query.flag(delayed)))
    if "details" in found:
        pairs.append(("details", query.flag(query.boolean(found, "details"))))
    if "until" in found:
        pairs.append(("until", found["until"][-1]))
    if "marker" not in found:
        pairs.append(("marker", marker))
    return pairs


def stored(path: str, posted: Sequence[Posted], warned: str | None = None) -> Response:
    """Answer a post to the queue or topic at `path`."""
    ids = [entry.id for entry in posted]
    shown = {"resources": [f"{path}/messages/{message_id}" for message_id in ids]}
    duplicates = [entry.id for entry in posted if entry.duplicate]
    if duplicates:
        shown["duplicates"] = duplicates
    body = to_json(shown)
    location = f"{path}/messages?ids={','.join(ids)}".encode()
    # To a client that refuses a long header the post would seem to have failed.
    headers = [(b"location", location)] if len(location) <= _LONGEST_LOCATION else []
    if len(duplicates) == len(posted):
        headers.append((b"idempotent-replayed", b"true"))
    if warned:
        headers += warning(warned)
    return Response(201, body, tuple(headers))


def idempotency_key(request: Request) -> str | None:
    """The key of a post as a whole, if it has one.

    Raises:
        HttpError: 400, it is no printable ASCII.
    """
    value = request.headers.get(b"idempotency-key")
    if value is None:
        return None
    key = value.decode("latin-1")
    if not (key.isascii() and key.isprintable()):
        raise HttpError(
            400,
            "Invalid header value",
            "The Idempotency-Key header must be printable ASCII.",
        )
    return key
