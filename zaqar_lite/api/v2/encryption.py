"""Data keys: list those of a project and make a new one, where the server encrypts."""

from typing import TYPE_CHECKING, Any

from zaqar_lite.api.http import Request, Response
from zaqar_lite.api.render import instant, to_json

if TYPE_CHECKING:
    from zaqar_lite.service.encryption.vault import Vault


class EncryptionHandlers:
    """The handlers of `/v2/data-keys`."""

    def __init__(self, vault: "Vault") -> None:
        self._vault = vault

    async def list_keys(self, request: Request) -> Response:
        """List the project's data keys by age; none is shown itself."""
        return Response(200, to_json(await self._shown(request.project)))

    async def rotate(self, request: Request) -> Response:
        """Make a data key, which seals what is posted from now on."""
        await self._vault.rotate(request.project)
        return Response(201, to_json(await self._shown(request.project)))

    async def _shown(self, project: str) -> dict[str, Any]:
        keys = await self._vault.list_keys(project)
        return {
            "data_keys": [
                {
                    "id": key.id,
                    "created_at": instant(key.at),
                    "server_key": key.server_key,
                    "current": key.current,
                }
                for key in keys
            ]
        }
