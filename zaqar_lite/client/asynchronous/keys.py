"""Keys of the server: the async client's methods."""

from collections.abc import AsyncIterator, Iterable, Sequence

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import data_keys, keys
from zaqar_lite.client.models import AccessKey, DataKey


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
        return await self.call(
            keys.create_key(
                grants,
                project=project,
                operator=operator,
                expires=expires,
                description=description,
            )
        )

    def list_keys(self) -> AsyncIterator[AccessKey]:
        """Yield the project's keys by id, page by page, without their texts."""
        return self._items(lambda marker: keys.list_keys(marker=marker))

    async def get_key(self, key_id: str) -> AccessKey:
        """Return a key without its text."""
        return await self.call(keys.get_key(key_id))

    async def disable_key(self, key_id: str, *, disabled: bool = True) -> AccessKey:
        """Disable a key, within 5 seconds; `disabled=False` enables it again."""
        return await self.call(keys.disable_key(key_id, disabled=disabled))

    async def rotate_key(self, key_id: str, *, overlap: int | None = None) -> AccessKey:
        """Make a key with the same grants; the old one ends after `overlap` seconds (a day)."""
        return await self.call(keys.rotate_key(key_id, overlap=overlap))

    async def delete_key(self, key_id: str) -> None:
        """Delete a key; an absent one is no error."""
        await self.call(keys.delete_key(key_id))

    async def list_data_keys(self) -> Sequence[DataKey]:
        """Return the keys that encrypt the messages of the project's queues, by age."""
        return await self.call(data_keys.list_data_keys())

    async def rotate_data_key(self) -> Sequence[DataKey]:
        """Encrypt what is posted from now on with a new key; return all keys."""
        return await self.call(data_keys.rotate_data_key())
