"""Data keys: list those of a project and make a new one, where the server encrypts."""

from typing import TYPE_CHECKING, Any

from zaqar_lite.api.call import Call, Result
from zaqar_lite.api.render import instant
from zaqar_lite.api.routes import route

if TYPE_CHECKING:
    from zaqar_lite.service.encryption.encryption_keys import EncryptionKeys


class EncryptionActions:
    """The actions of `/v2/data-keys`."""

    def __init__(self, encryption_keys: "EncryptionKeys") -> None:
        self._encryption_keys = encryption_keys

    @route("GET /v2/data-keys -> DataKeys", "data_keys:get_all admin", (200,))
    async def list_data_keys(self, call: Call) -> Result:
        """List the keys that seal a project's messages; none is shown itself."""
        return Result(200, await self._shown(call.project))

    @route("POST /v2/data-keys -> DataKeys", "data_keys:rotate admin", (201, 409, 413))
    async def rotate_data_key(self, call: Call) -> Result:
        """Seal a project's messages with a new key."""
        await self._encryption_keys.rotate(call.project)
        return Result(201, await self._shown(call.project))

    async def _shown(self, project: str) -> dict[str, Any]:
        keys = await self._encryption_keys.list_keys(project)
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
