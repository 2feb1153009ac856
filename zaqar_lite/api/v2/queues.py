"""Queues: create, read, patch, delete, list, count, purge, share and history."""

from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, HttpError, Request, Response, warning
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.metadata import idle_limit, unknown_keys
from zaqar_lite.domain.metadata_patch import Operation
from zaqar_lite.domain.metadata_patch import parse as parse_patch
from zaqar_lite.domain.models import Message
from zaqar_lite.domain.topics import name_of
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.sharing import Sharing
from zaqar_lite.service.subscriptions import Subscriptions

DEFAULT_LIMIT = 10
PATCH_TYPE = b"application/openstack-messaging-v2.0-json-patch"
_LIST_PARAMETERS = ("marker", "limit", "detailed", "name", "with_count")
_SHARE_FIELDS = ("paths", "methods", "expires")


class QueueHandlers:
    """The handlers under `/v2/queues`, except for messages and claims."""

    def __init__(
        self,
        queues: Queues,
        subscriptions: Subscriptions,
        sharing: Sharing,
        authority: Authority,
    ) -> None:
        self._queues = queues
        self._subscriptions = subscriptions
        self._sharing = sharing
        self._authority = authority

    async def list_queues(self, request: Request) -> Response:
        """List the project's queues."""
        found = query.parameters(request)
        with_count = query.boolean(found, "with_count")
        records = await self._queues.list_queues(request.project, **wanted_page(found))
        document = named_page(
            "queues", found, [(record.ref.name, self._queues.shown(record)) for record in records]
        )
        if with_count and (count := await self._queues.count(request.project)):
            document["count"] = count
        return Response(200, to_json(document))

    async def create(self, request: Request) -> Response:
        """Create a queue; one that exists stays as it is."""
        metadata = await sent_metadata(request, self._authority)
        created = await self._queues.create(queue_of(request), metadata)
        location = (b"location", request.path.encode())
        idle = idle_limit(metadata, metadata) if created else None
        headers = (location, *warning(unknown_keys(metadata), idle))
        return Response(201 if created else 204, b"", headers)

    async def get(self, request: Request) -> Response:
        """Read a queue's metadata; a queue that is not there shows the defaults."""
        return Response(200, to_json(await self._queues.metadata(queue_of(request))))

    async def patch(self, request: Request) -> Response:
        """Change a queue's metadata by a JSON patch."""
        operations = await sent_patch(request, self._authority)
        metadata = await self._queues.patch(queue_of(request), operations)
        idle = idle_limit(metadata, {operation.key for operation in operations})
        return Response(200, to_json(metadata), warning(unknown_keys(metadata), idle))

    async def delete(self, request: Request) -> Response:
        """Delete a queue with all its messages."""
        await self._queues.delete(queue_of(request))
        return NO_CONTENT

    async def stats(self, request: Request) -> Response:
        """Count a queue's messages."""
        queue = queue_of(request)
        found = query.parameters(request)
        details = query.boolean(found, "details")
        stats = await self._queues.stats(queue)
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
        if query.boolean(found, "recent"):
            document["recent"] = [list(one) for one in self._queues.recent.look(queue, stats)]
        return Response(200, to_json(document))

    async def purge(self, request: Request) -> Response:
        """Remove all messages of a queue, claimed and delayed ones too, and its subscriptions."""
        types = await purged_types(request)
        await self._queues.purge(queue_of(request), types)
        if "subscriptions" in types:
            await self._subscriptions.purge(queue_of(request))
        return NO_CONTENT

    async def share(self, request: Request) -> Response:
        """Make a pre-signed URL."""
        document = documents.parse_object(await documents.read(request))
        unknown = sorted(set(document) - set(_SHARE_FIELDS))
        if unknown:
            raise Invalid(f"Unknown field {unknown[0]!r}: {', '.join(_SHARE_FIELDS)} are known.")
        expires = document.get("expires")
        if expires is not None and not isinstance(expires, str):
            raise Invalid("'expires' must be a date and time in ISO 8601.")
        queue = queue_of(request)
        resources, methods = _texts(document, "paths"), _texts(document, "methods")
        self._authority.check_share(request.principal, name_of(queue), resources, methods)
        signed = await self._sharing.share(
            queue,
            resources=resources,
            methods=methods,
            expires=expires,
        )
        shown = {
            "paths": signed.paths,
            "methods": signed.methods,
            "project": signed.project,
            "expires": signed.expires,
            "signature": signed.signature,
        }
        return Response(200, to_json(shown))

    async def unshare(self, request: Request) -> Response:
        """Revoke the pre-signed URLs of a queue."""
        await self._sharing.unshare(queue_of(request))
        return NO_CONTENT

    async def history(self, request: Request) -> Response:
        """List messages that were acknowledged, or failed, where the store keeps them."""
        found = query.parameters(request)
        try:
            state = HistoryState(query.text(found, "state") or "done")
        except ValueError:
            raise Invalid("'state' must be 'done' or 'failed'.") from None
        limit = query.whole(found, "limit", DEFAULT_LIMIT)
        page = await self._queues.history(
            queue_of(request), state, marker=query.text(found, "marker"), limit=limit
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
        links = []
        if shown and page.marker is not None:
            pairs = [("state", state.value), ("limit", str(limit)), ("marker", page.marker)]
            links = [{"rel": "next", "href": query.link(request.path, pairs)}]
        return Response(200, to_json({"messages": shown, "links": links}))


def wanted_page(found: dict[str, list[str]]) -> dict[str, Any]:
    """What a listing of queues or topics asks for, as the services take it."""
    return {
        "marker": query.text(found, "marker"),
        "limit": query.whole(found, "limit", DEFAULT_LIMIT),
        "name_contains": query.text(found, "name"),
        "metadata": _metadata_filters(found),
    }


def named_page(
    kind: str, found: dict[str, list[str]], named: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """A page of queues or topics, given as names with metadata, and the link to the next one."""
    detailed = query.boolean(found, "detailed")
    shown: list[dict[str, Any]] = []
    for name, metadata in named:
        shown.append({"name": name, "href": f"/v2/{kind}/{name}"})
        if detailed:
            shown[-1]["metadata"] = metadata
    document: dict[str, Any] = {kind: shown, "links": []}
    if shown:
        href = query.link(f"/v2/{kind}", _link_parameters(found, named[-1][0]))
        document["links"] = [{"rel": "next", "href": href}]
    return document


async def sent_metadata(request: Request, authority: Authority) -> dict[str, Any]:
    """Read the metadata of a queue or topic that is to be created, and check the right to it."""
    metadata: dict[str, Any] = {}
    if request.content_length:
        metadata = documents.parse_object(await documents.read(request))
    authority.check_metadata(request.principal, metadata)
    return metadata


async def sent_patch(request: Request, authority: Authority) -> Sequence[Operation]:
    """Read a patch of metadata, and check the right to it.

    Raises:
        HttpError: 415, it does not say that it is one.
    """
    if request.headers.get(b"content-type") != PATCH_TYPE:
        raise HttpError(
            415,
            "415 Unsupported Media Type",
            f"A patch of metadata has the Content-Type {PATCH_TYPE.decode()}.",
            headers=((b"accept-patch", PATCH_TYPE),),
        )
    operations = parse_patch(documents.parse(await documents.read(request)))
    values = {operation.key: operation.value for operation in operations}
    authority.check_metadata(request.principal, values)
    return operations


async def purged_types(request: Request) -> list[str]:
    """What a purge shall remove: all, unless its document says what.

    Raises:
        Invalid: the document is wrong.
    """
    types: Any = ["messages", "subscriptions"]
    if request.content_length:
        document = documents.parse_object(await documents.read(request))
        types = document.get("resource_types")
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise Invalid("'resource_types' must be a list of 'messages', 'subscriptions'.")
    if set(types) - {"messages", "subscriptions"}:
        raise Invalid("Resource types must be a sub set of ['messages', 'subscriptions'].")
    return types


def _end(queue_name: str, message: Message) -> dict[str, Any]:
    return {
        "href": f"/v2/queues/{queue_name}/messages/{message.id}",
        "age": message.age_ms // 1000,
        "created": instant(message.created_at),
    }


def _texts(document: dict[str, Any], name: str) -> list[str]:
    values = document.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Invalid(f"'{name}' must be a list of strings.")
    return values


def _metadata_filters(found: dict[str, list[str]]) -> dict[str, Any]:
    """Filters by top-level metadata: a value that reads as an integer is one.

    Raises:
        Invalid: a filter has several values.
    """
    filters: dict[str, Any] = {}
    for name, values in found.items():
        if name in _LIST_PARAMETERS:
            continue
        if len(values) != 1:
            raise Invalid(f"The filter {name!r} takes one value, without a comma.")
        try:
            filters[name] = int(values[0]) if len(values[0]) <= 19 else values[0]
        except ValueError:
            filters[name] = values[0]
    return filters


def _link_parameters(found: dict[str, list[str]], marker: str) -> list[tuple[str, str]]:
    """The parameters of the link to the next page."""
    pairs: list[tuple[str, str]] = []
    for name in _LIST_PARAMETERS:
        if name not in found:
            continue
        if name == "marker":
            pairs.append((name, marker))
        elif name in ("detailed", "with_count"):
            pairs.append((name, query.flag(query.boolean(found, name))))
        else:
            pairs.append((name, found[name][-1]))
    pairs += [(name, values[-1]) for name, values in found.items() if name not in _LIST_PARAMETERS]
    if "marker" not in found:
        pairs.append(("marker", marker))
    return pairs
