"""Keys: create, list, show, disable, rotate and delete, where the server knows keys."""

from typing import Any

from zaqar_lite.api import documents, query
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.identity.keys import MOST_LISTED, Key, Keys

DEFAULT_LIMIT = 20
DEFAULT_OVERLAP = 86_400


class KeyHandlers:
    """The handlers under `/v2/keys`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def create(self, request: Request) -> Response:
        """Make a key, whose text is in this answer and nowhere else."""
        document = documents.parse_object(await documents.read(request))
        grants = document.get("grants")
        if not isinstance(grants, list) or not all(isinstance(text, str) for text in grants):
            raise Invalid("'grants' must be a list of grants, such as [\"send:orders*\"].")
        description = document.get("description", "")
        if not isinstance(description, str):
            raise Invalid("'description' must be a text.")
        key, text = await self._keys.create(
            request.principal,
            _project(request, document),
            grants,
            expires_in=documents.integer(document, "expires"),
            description=description,
        )
        return _made(key, text)

    async def list_keys(self, request: Request) -> Response:
        """List the keys of a project, or those that are bound to none."""
        found = query.parameters(request)
        limit = query.whole(found, "limit", DEFAULT_LIMIT)
        if not 1 <= limit <= MOST_LISTED:
            raise Invalid(f"Limit must be at least 1 and no greater than {MOST_LISTED}.")
        keys = await self._keys.list_keys(
            request.principal,
            request.project or None,
            marker=query.text(found, "marker"),
            limit=limit,
        )
        links = []
        if keys:
            pairs = [("limit", str(limit)), ("marker", keys[-1].id)]
            links = [{"rel": "next", "href": query.link("/v2/keys", pairs)}]
        return Response(200, to_json({"keys": [_shown(key) for key in keys], "links": links}))

    async def get(self, request: Request) -> Response:
        """Show a key without its secret."""
        return Response(200, to_json(_shown(await self._keys.get(*_named(request)))))

    async def change(self, request: Request) -> Response:
        """Disable a key, or let it work again."""
        document = documents.parse_object(await documents.read(request))
        disabled = document.get("disabled")
        if not isinstance(disabled, bool) or len(document) != 1:
            raise Invalid('The document is {"disabled": true} or {"disabled": false}.')
        maker, key_id = _named(request)
        key = await self._keys.set_disabled(maker, key_id, disabled)
        return Response(200, to_json(_shown(key)))

    async def rotate(self, request: Request) -> Response:
        """Make a key like this one, which ends after an overlap."""
        overlap: int | None = None
        if request.content_length:
            document = documents.parse_object(await documents.read(request))
            overlap = documents.integer(document, "overlap")
        key, text = await self._keys.rotate(
            *_named(request), overlap=DEFAULT_OVERLAP if overlap is None else overlap
        )
        return _made(key, text)

    async def delete(self, request: Request) -> Response:
        """Delete a key."""
        await self._keys.delete(*_named(request))
        return NO_CONTENT


def _named(request: Request) -> tuple[Principal, str]:
    """Who asks, and for which key."""
    return request.principal, request.path_values[0]


def _project(request: Request, document: dict[str, Any]) -> str | None:
    """The project of a new key: the document's, else the request's; null is for no project."""
    if "project" not in document:
        if not request.project:
            raise Invalid("Name the 'project' of the key; null makes an operator's, for all.")
        return request.project
    project = document["project"]
    if project is not None and not isinstance(project, str):
        raise Invalid("'project' must be a text, or null.")
    return project


def _made(key: Key, text: str) -> Response:
    location = (b"location", f"/v2/keys/{key.id}".encode())
    return Response(201, to_json({**_shown(key), "key": text}), (location,))


def _shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "project": key.project,
        "grants": [str(grant) for grant in key.grants],
        "created_at": instant(key.created_at),
        "created_by": key.created_by,
        "expires_at": None if key.expires_at is None else instant(key.expires_at),
        "disabled": key.disabled,
        "description": key.description,
    }
