"""Queues: create, read, patch, delete, list, count, purge, share and history.

What topics have alike is in `NamedActions`; `topics.py` has the rest of theirs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from msgspec import Struct

from zaqar_lite.api import documents
from zaqar_lite.api.render import instant, next_page
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
from zaqar_lite.api.routes import DETAILS, LIMIT, MARKER, METADATA, QUEUE_LIMIT, route
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.metadata import idle_limit, parse_patch, unknown_keys, visible
from zaqar_lite.domain.models import HistoryState, Message
from zaqar_lite.domain.topics import name_of
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.presigned_urls import PresignedUrls
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics

PATCH_TYPE = b"application/openstack-messaging-v2.0-json-patch"
_LIST_PARAMETERS = ("marker", "limit", "detailed", "name", "with_count")
Purged = Literal["messages", "subscriptions"]


class Purge(Struct):
    """What a purge shall remove."""

    resource_types: list[Purged]


class Share(Struct, forbid_unknown_fields=True):
    """What a pre-signed URL shall open, for which methods, and until when."""

    paths: list[str] | None = None
    methods: list[str] | None = None
    expires: str | None = None


@dataclass(eq=False, repr=False)
class NamedActions:
    """What queues and topics have alike; `on_topics` makes the topics' routes."""

    named: Queues | Topics
    subscriptions: Subscriptions
    presigned_urls: PresignedUrls
    authorizer: Authorizer

    @route(
        "PUT /v2/queues/{queue_name} Metadata",
        "queues:create manage",
        (201, 204),
        largest=METADATA,
        rel="queue",
    )
    async def create_queue(self, request: Request) -> Response:
        """Create a queue; one that exists stays as it is."""
        metadata = documents.parse_object(request.document) if request.size else {}
        self.authorizer.check_metadata(request.principal, metadata)
        created = await self.named.create(request.queue, metadata)
        warned = self._warning(metadata, metadata if created else ())
        headers = ((b"location", request.path.encode()), *warned)
        return Response(201 if created else 204, b"", headers)

    @route("GET /v2/queues/{queue_name} -> Metadata", "queues:get read", (200,), rel="queue")
    async def show_queue(self, request: Request) -> Response:
        """Show a queue's metadata; a queue that is not there shows the defaults."""
        return Response(200, await self.named.metadata(request.queue))

    @route(
        "PATCH /v2/queues/{queue_name} MetadataPatch -> Metadata",
        "queues:update manage",
        (200, 404, 409, 415),
        invalid_title="Invalid request body",
        largest=METADATA,
        rel="queue",
    )
    async def update_queue(self, request: Request) -> Response:
        """Change a queue's metadata."""
        if request.headers.get(b"content-type") != PATCH_TYPE:
            raise Refused(
                415,
                "415 Unsupported Media Type",
                f"A patch of metadata has the Content-Type {PATCH_TYPE.decode()}.",
                headers=((b"accept-patch", PATCH_TYPE),),
            )
        operations = parse_patch(documents.parse(request.document))
        values = {operation.key: operation.value for operation in operations}
        self.authorizer.check_metadata(request.principal, values)
        metadata = await self.named.patch(request.queue, operations)
        return Response(200, metadata, self._warning(metadata, values))

    @route("DELETE /v2/queues/{queue_name}", "queues:delete manage", (204,), rel="queue")
    async def delete_queue(self, request: Request) -> Response:
        """Delete a queue."""
        await self.named.delete(request.queue)
        return NO_CONTENT

    @route(
        "POST /v2/queues/{queue_name}/purge Purge", "queues:purge manage", (204,), rel="queue_purge"
    )
    async def purge_queue(self, request: Request) -> Response:
        """Purge a queue; of all, unless the document says of what."""
        types: Sequence[str] = get_args(Purged)
        if request.size:
            types = documents.read_form(request, Purge).resource_types
        await self.named.purge(request.queue, types)
        if "subscriptions" in types:
            await self.subscriptions.purge(request.queue)
        return NO_CONTENT

    @route(
        "POST /v2/queues/{queue_name}/share Share -> SignedUrl",
        "queues:share manage",
        (200,),
        rel="queue_share",
    )
    async def share_queue(self, request: Request) -> Response:
        """Make a pre-signed URL."""
        if not request.size:
            raise bad_body("The request needs a body: a JSON document.")
        form = documents.read_form(request, Share)
        queue, resources, methods = request.queue, form.paths or [], form.methods or []
        self.authorizer.check_share(request.principal, name_of(queue), resources, methods)
        signed = await self.presigned_urls.share(
            queue, resources=resources, methods=methods, expires=form.expires
        )
        return Response(200, asdict(signed))

    @route(
        "DELETE /v2/queues/{queue_name}/share", "queues:unshare manage", (204,), rel="queue_share"
    )
    async def unshare_queue(self, request: Request) -> Response:
        """Revoke a queue's pre-signed URLs."""
        await self.presigned_urls.unshare(request.queue)
        return NO_CONTENT

    def _warning(self, metadata: Mapping[str, Any], changed: Collection[str]) -> Headers:
        """Tell what of metadata has no effect, where some keys were `changed`."""
        idle = None if isinstance(self.named, Topics) else idle_limit(metadata, changed)
        return warning(unknown_keys(metadata), idle)


@dataclass(eq=False, repr=False)
class QueueActions(NamedActions):
    """The actions under `/v2/queues`, except for messages and claims."""

    named: Queues

    @route(
        "GET /v2/queues -> Queues",
        "queues:get_all read",
        (200,),
        (
            MARKER,
            QUEUE_LIMIT,
            Parameter("detailed", "Flag", "Show the metadata too."),
            Parameter("name", "Text", "Only queues with this in their name."),
            Parameter("with_count", "Flag", "Count the project's queues."),
        ),
        rel="queues",
    )
    async def list_queues(self, request: Request) -> Response:
        """List queues."""
        with_count = request.flag("with_count")
        records = await self.named.list_queues(request.project, **page_query(request))
        document = named_page(
            "queues",
            request,
            [(record.queue.name, self.named.shown(record)) for record in records],
        )
        if with_count and (count := await self.named.count(request.project)):
            document["count"] = count
        return Response(200, document)

    async def list_stored(self, request: Request) -> Response:
        """List the project's queues, their metadata as it is stored."""
        records = await self.named.list_queues(request.project, **page_query(request))
        named = [(record.queue.name, visible(record.metadata)) for record in records]
        return Response(200, named_page("queues", request, named))

    async def get_stored(self, request: Request) -> Response:
        """Read a queue's metadata as it is stored; a queue that is not there has none."""
        return Response(200, await self.named.stored_metadata(request.queue) or {})

    @route(
        "GET /v2/queues/{queue_name}/stats -> Stats",
        "queues:stats read",
        (200,),
        (DETAILS, Parameter("recent", "Flag", "Show the last hour too, as far as known.")),
    )
    async def queue_stats(self, request: Request) -> Response:
        """Count a queue's messages."""
        queue = request.queue
        details = request.flag("details")
        stats = await self.named.stats(queue)
        counts: dict[str, Any] = {
            "claimed": stats.claimed,
            "free": stats.ready + stats.delayed,
            "total": stats.total,
        }
        if details:
            counts["ready"] = stats.ready
            counts["delayed"] = stats.delayed
        for name, message in (("oldest", stats.oldest), ("newest", stats.newest)):
            if message is not None:
                counts[name] = _end(queue.name, message)
        document: dict[str, Any] = {"messages": counts}
        if request.flag("recent"):
            document["recent"] = [list(one) for one in self.named.recent.look(queue, stats)]
            rates = self.named.recent.rates(queue)
            if rates is not None:
                document["rates"] = rates._asdict()
        return Response(200, document)

    async def stats_stored(self, request: Request) -> Response:
        """Count a queue's messages; 404 with zeros where it is not there."""
        if await self.named.stored_metadata(request.queue) is None:
            return Response(404, {"messages": {"claimed": 0, "free": 0, "total": 0}})
        return await self.queue_stats(request)

    @route(
        "GET /v2/queues/{queue_name}/history -> History",
        "queues:history read",
        (200,),
        (Parameter("state", "HistoryState", "'done' or 'failed'."), MARKER, LIMIT),
    )
    async def queue_history(self, request: Request) -> Response:
        """List done or failed messages."""
        try:
            state = HistoryState(request.text("state") or "done")
        except ValueError:
            raise Invalid("'state' must be 'done' or 'failed'.") from None
        limit = request.whole("limit", None)
        page = await self.named.history(
            request.queue, state, marker=request.text("marker"), limit=limit
        )
        shown = [
            {
                "id": entry.id,
                "at": instant(entry.ended_at),
                "attempts": entry.attempts,
                "consumers": list(entry.consumers),
            }
            for entry in page.entries
        ]
        links = next_page(request, page.marker if shown else None)
        return Response(200, {"messages": shown, "links": links})


def page_query(request: Request) -> dict[str, Any]:
    """What a listing of queues or topics asks for, as the services take it."""
    return {
        "marker": request.text("marker"),
        "limit": request.whole("limit", None),
        "name_contains": request.text("name"),
        "metadata": _metadata_filters(request),
    }


def named_page(
    kind: str, request: Request, named: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """A page of queues or topics, given as names with metadata, and the link to the next one."""
    detailed = request.flag("detailed")
    shown: list[dict[str, Any]] = []
    for name, metadata in named:
        shown.append({"name": name, "href": f"/v2/{kind}/{name}"})
        if detailed:
            shown[-1]["metadata"] = metadata
    return {kind: shown, "links": next_page(request, named[-1][0] if named else None)}


def _end(queue_name: str, message: Message) -> dict[str, Any]:
    return {
        "href": f"/v2/queues/{queue_name}/messages/{message.id}",
        "age": message.age_ms // 1000,
        "created": instant(message.created_at),
    }


def _metadata_filters(request: Request) -> dict[str, Any]:
    """Filters by top-level metadata: a value that reads as an integer is one.

    Raises:
        Invalid: a filter has several values.
    """
    filters: dict[str, Any] = {}
    for name, values in request.parameters.items():
        if name in _LIST_PARAMETERS:
            continue
        if len(values) != 1:
            raise Invalid(f"The filter {name!r} takes one value, without a comma.")
        try:
            filters[name] = int(values[0]) if len(values[0]) <= 19 else values[0]
        except ValueError:
            filters[name] = values[0]
    return filters
