"""The message store as services see it where queues may be encrypted: bodies come out opened."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import Claim, Claimed, Edit, Message, Page, QueueRef, Selection, Take
from zaqar_lite.domain.sealed import is_sealed
from zaqar_lite.service.encryption.vault import Vault
from zaqar_lite.storage.base import MessageStore


def opening(store: MessageStore, vault: Vault) -> MessageStore:
    """Put a vault in front of a store: what is read is opened, everything else is the store's."""
    return cast(MessageStore, _Opening(store, vault))


class _Opening:
    def __init__(self, store: MessageStore, vault: Vault) -> None:
        self._store = store
        self._vault = vault

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        page = await self._store.list_messages(queue, selection)
        await self._vault.open(queue.project, page.messages)
        return page

    async def get_messages(
        self, queue: QueueRef, ids: Sequence[str], *, details: bool = False
    ) -> Sequence[Message]:
        found = await self._store.get_messages(queue, ids, details=details)
        await self._vault.open(queue.project, found)
        return found

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        claim = await self._store.get_claim(queue, claim_id, details=details)
        await self._vault.open(queue.project, claim.messages)
        return claim

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        edited = await self._store.edit(queue, edit)
        await self._vault.open(queue.project, (edited,))
        return edited

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        claimed = await self._store.claim(queue, take)
        try:
            await self._vault.open(queue.project, claimed.messages)
        except Unavailable:
            if claimed.claim_id is not None:
                with suppress(Unavailable):  # then its leases lapse
                    await self._store.release(queue, claimed.claim_id)
            raise
        return claimed

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        popped = await self._store.pop(queue, take)
        for message in popped.messages:
            if is_sealed(message.body):
                message.body = await self._open_popped(queue.project, message.body)
        return popped

    async def _open_popped(self, project: str, body: bytes) -> bytes:
        """Open what is in no store any more: without its key it is handed out as it was stored."""
        try:
            return await self._vault.open_body(project, body)
        except Unavailable as error:
            told = {"zaqar_lite_damaged": error.shown, "sealed": json.loads(body)}
            return json.dumps(told).encode()
