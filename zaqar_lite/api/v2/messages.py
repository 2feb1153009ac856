"""Messages: post, list, get, edit, delete, pop, and the ranges for parallel readers."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Raw, Struct

from zaqar_lite.api import documents
from zaqar_lite.api.long_polling import Polling
from zaqar_lite.api.render import Renderer, instant, next_page, yes_no
from zaqar_lite.api.request import (
    NO_CONTENT,
    Headers,
    Parameter,
    Refused,
    Request,
    Response,
    bad_body,
    warning,
)
from zaqar_lite.api.routes import (
    DETAILS,
    KEY,
    LARGE,
    MARKER,
    MESSAGE_LIMIT,
    POST,
    WAIT,
    route,
)
from zaqar_lite.api.v2.claims import ClaimActions
from zaqar_lite.domain.clock import read_instant
from zaqar_lite.domain.errors import Invalid, NotFound
from zaqar_lite.domain.ids import format_marker
from zaqar_lite.domain.limits import MAX_BODY_DEPTH
from zaqar_lite.domain.models import Message, Page
from zaqar_lite.domain.posts import Posted
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.messages import Messages

_DEFAULT_COUNT = 10
_KEY = b"idempotency-key"
_LONGEST_LOCATION, _MOST_LOCATED = 7_680, 256
"""Bytes, as many clients and proxies take 8 KiB of headers; so many ids have more than that."""
_SHOWN = 1_000
"""Messages whose places one step writes: about 0.5 ms."""


class Edit(Struct, forbid_unknown_fields=True):
    """What is to be changed of a delayed message; an empty body is none, and null is refused."""

    body: Raw = Raw()
    ttl: int = documents.ABSENT
    delay: int = documents.ABSENT


@dataclass(eq=False, repr=False)
class MessageActions:
    """The actions under `/v2/queues/{queue_name}/messages`."""

    messages: Messages
    claims: ClaimActions
    polling: Polling
    renderer: Renderer

    @route(
        "POST /v2/queues/{queue_name}/messages Messages -> Resources",
        "messages:create send",
        (201, 404, 409),
        (KEY,),
        largest=POST,
    )
    async def post_messages(self, request: Request) -> Response:
        """Post messages."""
        receipt = await self.messages.post(
            request.queue,
            await documents.read_messages(request),
            size=request.size,
            client_id=request.client_id,
            batch_key=idempotency_key(request) if _KEY in request.headers else None,
        )
        return await posted_response(request.path, receipt.posted, receipt.warning)

    @route(
        "GET /v2/queues/{queue_name}/messages -> MessageList",
        "messages:get_all read",
        (200, 404, 429),
        (
            MARKER,
            Parameter("until", "Text", "The marker of the last message to list."),
            MESSAGE_LIMIT,
            LARGE,
            WAIT,
            Parameter("echo", "Flag", "Show your own messages too."),
            Parameter("include_claimed", "Flag", "Show claimed messages too."),
            Parameter("include_delayed", "Flag", "Show delayed messages too."),
            Parameter("ids", "Text", "Comma list: get these instead."),
            DETAILS,
        ),
        rel="messages",
    )
    async def list_messages(self, request: Request) -> Response:
        """List messages, or get some by their ids."""
        details = request.flag("details")
        if "ids" in request.parameters:
            return await self._get_many(request, request.parameters["ids"], details)
        return await self._list(request, details)

    @route(
        "GET /v2/queues/{queue_name}/messages/{message_id} -> Message",
        "messages:get read",
        (200, 404),
        (DETAILS,),
        rel="message_get",
    )
    async def get_message(self, request: Request) -> Response:
        """Get a message."""
        queue = request.queue
        details = request.flag("details")
        messages = await self.messages.get(queue, request.path_values[1:], details=details)
        if not messages:
            raise NotFound(f"Message {request.path_values[1]!r} does not exist.")
        shown = self.renderer.message(queue, messages[0], details=details)
        return Response(200, shown, _tag(messages[0]))

    @route(
        "PATCH /v2/queues/{queue_name}/messages/{message_id} Edit -> Message",
        "messages:update manage",
        (200, 204, 403, 404, 409, 412),
        (DETAILS, Parameter("claim_id", "Text", "The claim that holds it: settle it.")),
        consuming=("claim_id",),
        largest=POST,
        rel="message_patch",
    )
    async def edit_message(self, request: Request) -> Response:
        """Edit a delayed message, or settle a claimed one; with a claim_id, settle it."""
        if "claim_id" in request.parameters:
            return await self.claims.settle_one(request)
        queue = request.queue
        details = request.flag("details")
        form = documents.read_struct(request, Edit, deepest=MAX_BODY_DEPTH)
        if form == Edit():
            raise bad_body("Nothing to edit: give 'body', 'ttl' or 'delay'.")
        message = await self.messages.edit(
            queue,
            request.path_values[1],
            body=bytes(form.body) or None,
            ttl=form.ttl,
            delay=form.delay,
            if_due=if_due(request),
            size=request.size,
        )
        shown = self.renderer.message(queue, message, details=details)
        return Response(200, shown, _tag(message))

    @route(
        "DELETE /v2/queues/{queue_name}/messages/{message_id}",
        "messages:delete manage",
        (204, 403),
        (Parameter("claim_id", "Text", "The claim that holds the message."),),
        consuming=("claim_id",),
        invalid_title="Unable to delete",
        rel="message_delete",
    )
    async def delete_message(self, request: Request) -> Response:
        """Delete a message."""
        claim_id = request.text("claim_id")
        await self.messages.delete(request.queue, request.path_values[1], claim_id)
        return NO_CONTENT

    @route(
        "DELETE /v2/queues/{queue_name}/messages -> Popped",
        "messages:delete_all manage",
        (200, 204, 403, 429),
        (
            Parameter("ids", "Text", "Comma list of the messages to delete."),
            Parameter("claim_ids", "Text", "Comma list: delete only what these hold."),
            Parameter("pop", "TakeLimit", "How many messages to pop."),
            LARGE,
            WAIT,
            DETAILS,
        ),
        consuming=("pop", "claim_ids"),
        rel="messages_delete",
    )
    async def delete_messages(self, request: Request) -> Response:
        """Delete messages by their ids, or pop some."""
        queue = request.queue
        if ("ids" in request.parameters) == ("pop" in request.parameters):
            raise Invalid("Exactly one of the parameters 'ids' and 'pop' must be given.")
        large = request.flag("large")
        if "ids" in request.parameters:
            await self.messages.delete_many(
                queue, request.parameters["ids"], request.parameters.get("claim_ids"), large=large
            )
            return NO_CONTENT
        limit, seconds = request.whole("pop", 0), self.polling.seconds(request)
        details = request.flag("details")
        wanted = self.messages.pop_request(limit, details=details, large=large)

        async def ask() -> Sequence[Message] | None:
            return await self.messages.pop(queue, wanted) or None

        popped = await self.polling.ask(request, queue, seconds, ask)
        shown = self.renderer.popped(queue, popped or (), details=details)
        return Response(200, {"messages": shown})

    @route(
        "GET /v2/queues/{queue_name}/ranges -> Ranges",
        "messages:ranges read",
        (200,),
        (Parameter("count", "RangeCount", "How many ranges at most."),),
    )
    async def queue_ranges(self, request: Request) -> Response:
        """Cut a queue into ranges."""
        count = request.whole("count", _DEFAULT_COUNT)
        positions = await self.messages.ranges(request.queue, count)
        markers = [format_marker(position) for position in positions]
        shown: list[dict[str, str]] = [{} for _ in markers]
        for index, marker in enumerate(markers[:-1]):
            shown[index]["until"] = marker
            shown[index + 1]["marker"] = marker
        return Response(200, {"ranges": shown})

    async def _get_many(self, request: Request, ids: Sequence[str], details: bool) -> Response:
        queue = request.queue
        messages = await self.messages.get(queue, ids, details=details, large=request.flag("large"))
        if not messages:
            raise NotFound("None of these messages exists.")
        shown = self.renderer.messages(queue, messages, details=details)
        return Response(200, {"messages": shown})

    async def _list(self, request: Request, details: bool) -> Response:
        queue = request.queue
        echo, large = request.flag("echo"), request.flag("large")
        marker, until = request.text("marker"), request.text("until")
        limit, seconds = request.whole("limit", None), self.polling.seconds(request)
        include_claimed = request.flag("include_claimed")
        include_delayed = request.flag("include_delayed")

        async def ask() -> tuple[Page, bool] | None:
            listed = await self.messages.list_messages(
                queue,
                marker=marker,
                until=until,
                limit=limit,
                exclude_client_id=None if echo else request.client_id,
                include_claimed=include_claimed,
                include_delayed=include_delayed,
                details=details,
                large=large,
            )
            return listed if listed[0].messages or not seconds else None

        listed = await self.polling.ask(request, queue, seconds, ask, reads=True)
        page, delayed = listed or (Page((), None), False)
        if not page.messages or page.marker is None:
            return Response(200, {"messages": [], "links": []})
        given = "include_delayed" in request.parameters
        more = {"include_delayed": yes_no(delayed)} if delayed or given else {}
        links = next_page(request, format_marker(page.marker), **more)
        shown = self.renderer.messages(queue, page.messages, details=details)
        return Response(200, {"messages": shown, "links": links})


async def posted_response(
    path: str, posted: Sequence[Posted], warned: str | None = None
) -> Response:
    """Answer a post to `path`, the place of a queue's or topic's messages."""
    ids: list[str] = []
    resources: list[str] = []
    duplicates: list[str] = []
    for index, one in enumerate(posted, 1):
        if index % _SHOWN == 0:
            await next_turn()
        ids.append(one.id)
        resources.append(f"{path}/{one.id}")
        if one.duplicate:
            duplicates.append(one.id)
    shown = {"resources": resources}
    # To a client that refuses a long header the post would seem to have failed.
    location = f"{path}?ids={','.join(ids[:_MOST_LOCATED])}".encode()
    headers: Headers = ((b"location", location),) if len(location) <= _LONGEST_LOCATION else ()
    if duplicates:
        shown["duplicates"] = duplicates
        if len(duplicates) == len(ids):
            headers = (*headers, (b"idempotent-replayed", b"true"))
    return Response(201, shown, (*headers, *warning(warned)) if warned else headers)


def idempotency_key(request: Request) -> str | None:
    """The key of a post as a whole, if it has one.

    Raises:
        Refused: 400, it is no printable ASCII.
    """
    value = request.headers.get(_KEY)
    if value is None:
        return None
    key = value.decode("latin-1")
    if not (key.isascii() and key.isprintable()):
        raise Refused(
            400, "Invalid header value", "The Idempotency-Key header must be printable ASCII."
        )
    return key


def if_due(request: Request) -> int | None:
    """When a message must be due (ms) for the request to change it: its If-Match header.

    Raises:
        Invalid: the header is no instant.
    """
    value = request.headers.get(b"if-match")
    if value is None or value.strip() == b"*":
        return None
    return read_instant(value.decode("latin-1").strip().strip('"'))


def _tag(message: Message) -> Headers:
    """The header that tells when a delayed message is due, to be sent back in If-Match."""
    due = message.delay_expires_at
    if due is None or due <= message.now:
        return ()
    return ((b"etag", f'"{instant(due)}"'.encode()),)
