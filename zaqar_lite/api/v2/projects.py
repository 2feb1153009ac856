"""What an operator gives projects: keys, data keys where the server encrypts, and quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType

from zaqar_lite.api import documents
from zaqar_lite.api.render import instant
from zaqar_lite.api.request import NO_CONTENT, Request, Response
from zaqar_lite.api.resources import Resource
from zaqar_lite.api.routes import route
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.identity.keys import MOST_LISTED, Key, Keys, signing_secret
from zaqar_lite.service.quotas.quota_usage import QuotaUsage
from zaqar_lite.service.quotas.quotas import Quotas

if TYPE_CHECKING:
    from zaqar_lite.service.encryption import EncryptionKeys

DEFAULT_OVERLAP = 86_400


class NewKey(Struct):
    """A key that is to be made, for the request's project unless it names one; null is for none."""

    grants: list[str]
    project: str | UnsetType | None = UNSET
    expires: int | None = None
    description: str = ""


class KeyChange(Struct, forbid_unknown_fields=True):
    """Whether a key opens nothing for now."""

    disabled: bool


class KeyOverlap(Struct):
    """For how many seconds a key that is rotated goes on."""

    overlap: int | None = None


@Resource(
    *("key", "/v2/keys/{key_id}", "keys", "admin", "admin"),
    *("KeyLimit", 20),
    guards=("list", "show", "delete"),
)
@dataclass(eq=False, repr=False)
class KeyActions:
    """The actions under `/v2/keys`; where holders of keys may sign, they are told their secret."""

    keys: Keys
    signs: bool
    most: int = MOST_LISTED

    @route("POST /v2/keys NewKey -> MadeKey", "keys:create admin", (201, 403), largest_body=16_384)
    async def create_key(self, request: Request) -> Response:
        """Create a key."""
        form = documents.read_form(request, NewKey)
        project = request.project if form.project is UNSET else form.project
        if form.project is UNSET and not project:
            raise Invalid("Name the 'project' of the key; null makes an operator's, for all.")
        key, text = await self.keys.create(
            request.principal,
            project,
            form.grants,
            expires_in=form.expires,
            description=form.description,
        )
        return self._made(key, text)

    async def page(self, request: Request, marker: str | None, limit: int) -> Sequence[Key]:
        """Read some keys of a project."""
        project = request.project or None
        return await self.keys.list_keys(request.principal, project, marker=marker, limit=limit)

    async def find(self, request: Request) -> Key:
        """Read a key."""
        return await self.keys.get(*_named(request))

    async def remove(self, request: Request) -> None:
        """Delete a key."""
        await self.keys.delete(*_named(request))

    def shown(self, key: Key, *, detailed: bool = True) -> dict[str, Any]:
        """Write a key, without what it opens by."""
        return {
            "id": key.id,
            "project": key.project,
            "grants": list(key.grants),
            "created_at": instant(key.created_at),
            "created_by": key.created_by,
            "expires_at": None if key.expires_at is None else instant(key.expires_at),
            "disabled": key.disabled,
            "description": key.description,
        }

    def _made(self, key: Key, text: str) -> Response:
        location = (b"location", f"/v2/keys/{key.id}".encode())
        shown = {**self.shown(key), "key": text}
        if self.signs:
            shown["aws_secret_access_key"] = signing_secret(key)
        return Response(201, shown, (location,))

    @route("PATCH /v2/keys/{key_id} KeyChange -> Key", "keys:update admin", (200, 403, 404))
    async def change_key(self, request: Request) -> Response:
        """Disable a key, or let it work again."""
        form = documents.read_form(request, KeyChange)
        key = await self.keys.set_disabled(*_named(request), form.disabled)
        return Response(200, self.shown(key))

    @route(
        "POST /v2/keys/{key_id}/rotate KeyOverlap -> MadeKey", "keys:rotate admin", (201, 403, 404)
    )
    async def rotate_key(self, request: Request) -> Response:
        """Make a key like this one, which then ends."""
        overlap = documents.read_form(request, KeyOverlap).overlap
        key, text = await self.keys.rotate(
            *_named(request), overlap=DEFAULT_OVERLAP if overlap is None else overlap
        )
        return self._made(key, text)


def _named(request: Request) -> tuple[Principal, str]:
    """The principal of a request, and the id of the key that it names."""
    return request.principal, request.path_values[0]


@dataclass(eq=False, repr=False)
class EncryptionActions:
    """The actions of `/v2/data-keys`."""

    encryption_keys: "EncryptionKeys"

    @route("GET /v2/data-keys -> DataKeys", "data_keys:get_all admin", (200,))
    async def list_data_keys(self, request: Request) -> Response:
        """List the keys that seal a project's messages; none is shown itself."""
        return Response(200, await self._shown(request.project))

    @route("POST /v2/data-keys -> DataKeys", "data_keys:rotate admin", (201, 409, 413))
    async def rotate_data_key(self, request: Request) -> Response:
        """Seal a project's messages with a new key."""
        await self.encryption_keys.rotate(request.project)
        return Response(201, await self._shown(request.project))

    async def _shown(self, project: str) -> dict[str, Any]:
        keys = await self.encryption_keys.list_keys(project)
        return {
            "data_keys": [
                {
                    "id": key.id,
                    "created_at": instant(key.at),
                    "server_key": key.kek,
                    "current": key is keys[-1],
                }
                for key in keys
            ]
        }


@dataclass(eq=False, repr=False)
class QuotaActions:
    """The actions of `/v2/quota` and `/v2/quotas`."""

    quotas: Quotas
    usage: QuotaUsage

    @route("GET /v2/quota -> Quota", "quota:get read", (200,))
    async def show_quota(self, request: Request) -> Response:
        """Show the project's quotas and usage."""
        return Response(200, await self._shown(request.project))

    @route("GET /v2/quotas/{project_id} -> Quota", "quotas:get admin", (200,))
    async def show_quotas(self, request: Request) -> Response:
        """Show a project's quotas and usage."""
        project = request.path_values[0]
        own = await self.quotas.own(project)
        return Response(200, {**await self._shown(project), "own": own})

    @route("PUT /v2/quotas/{project_id} Quotas -> Quota", "quotas:update admin", (200,))
    async def set_quotas(self, request: Request) -> Response:
        """Set a project's quotas."""
        document = documents.parse_object(request.document)
        await self.quotas.set(request.path_values[0], document)
        return await self.show_quotas(request)

    @route("DELETE /v2/quotas/{project_id}", "quotas:delete admin", (204,))
    async def reset_quotas(self, request: Request) -> Response:
        """Give a project the default quotas."""
        await self.quotas.reset(request.path_values[0])
        return NO_CONTENT

    async def _shown(self, project: str) -> Mapping[str, Any]:
        return {
            "project": project,
            "quotas": self.quotas.of(project).as_document(),
            "usage": await self.usage.of(project),
        }
