"""Keys of the server: the async client's methods."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from zaqar_lite.client.arguments import texts, whole
from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints.resources import ask, list_page, path_of, tell
from zaqar_lite.client.models import AccessKey, DataKey
from zaqar_lite.client.records import reader

_KEY = reader(AccessKey)
_DATA_KEY = reader(DataKey)


class AsyncKeys(AsyncCalls):
    """Make, list, disable, rotate and delete keys; the server asks for the verb `admin`."""

    async def create_key(
        self,
        grants: Iterable[str],
        *,
        project: str | None = None,
        operator: bool = False,
        expires: int | None = None,
        description: str = "",
    ) -> AccessKey:
        """Make a key; its `key` is the only copy there is.

        Args:
            grants: what it opens, such as `send:orders*`.
            project: whose it is; the client's own when None.
            operator: make one that is bound to no project.
            expires: seconds until it ends.
            description: for whoever looks at the list.
        """
        wanted: dict[str, object] = {"grants": texts("grants", grants), "description": description}
        if project is not None or operator:
            wanted["project"] = project
        if expires is not None:
            wanted["expires"] = whole("expires", expires)
        # Sent twice it would make two, one of which nobody knows.
        return await self.call(ask("POST", "/v2/keys", _KEY, wanted, resend=False))

    def list_keys(self) -> AsyncIterator[AccessKey]:
        """Yield the project's keys by id, page by page, without their texts."""
        return self._items(lambda marker: list_page("/v2/keys", "keys", _KEY, marker=marker))

    async def get_key(self, key_id: str) -> AccessKey:
        """Return a key without its text."""
        return await self.call(ask("GET", path_of("keys", key_id), _KEY))

    async def disable_key(self, key_id: str, *, disabled: bool = True) -> AccessKey:
        """Disable a key, within 5 seconds; `disabled=False` enables it again."""
        return await self.call(ask("PATCH", path_of("keys", key_id), _KEY, {"disabled": disabled}))

    async def rotate_key(self, key_id: str, *, overlap: int | None = None) -> AccessKey:
        """Make a key with the same grants; the old one ends after `overlap` seconds (a day)."""
        wanted = {} if overlap is None else {"overlap": whole("overlap", overlap)}
        path = path_of("keys", key_id, "rotate")
        return await self.call(ask("POST", path, _KEY, wanted, resend=False))

    async def delete_key(self, key_id: str) -> None:
        """Delete a key; an absent one is no error."""
        await self.call(tell("DELETE", path_of("keys", key_id)))

    async def list_data_keys(self) -> Sequence[DataKey]:
        """Return the keys that encrypt the messages of the project's queues, by age."""
        return await self.call(ask("GET", "/v2/data-keys", _data_keys))

    async def rotate_data_key(self) -> Sequence[DataKey]:
        """Encrypt what is posted from now on with a new key; return all keys."""
        return await self.call(ask("POST", "/v2/data-keys", _data_keys, resend=False))


def _data_keys(document: Any) -> Sequence[DataKey]:  # noqa: ANN401 - JSON is anything
    return [_DATA_KEY(one) for one in document["data_keys"]]
