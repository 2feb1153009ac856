"""The stores as services see them where the server has keys.

Bodies of encrypted queues come out opened. Records that hold what their users would hide, such as
the headers of a webhook, the secret that signs for it, the body of a schedule, the id of a trust
and the passwords of a pool, lie sealed in the management store, bound to their project, kind and
name.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from zaqar_lite.domain.errors import RecordDamaged, Unavailable
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    Message,
    QueueRef,
    Record,
)
from zaqar_lite.domain.sealed import is_sealed
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.domain.subscriptions import KIND as SUBSCRIPTION
from zaqar_lite.service.encryption.encryption_keys import DAMAGED, EncryptionKeys
from zaqar_lite.service.identity.trusts import KIND as TRUST
from zaqar_lite.service.pooling.pools import POOL
from zaqar_lite.service.schedules.schedules import KIND as SCHEDULE
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
_SEALED_KINDS = frozenset((SUBSCRIPTION, SCHEDULE, POOL, TRUST))


def opening(store: MessageStore, encryption_keys: EncryptionKeys) -> MessageStore:
    """Open what is read from a store; everything else is the store's."""
    return cast(MessageStore, _Opening(store, encryption_keys))


def sealing(store: ManagementStore, encryption_keys: EncryptionKeys) -> ManagementStore:
    """Seal some kinds of records in front of their store."""
    return cast(ManagementStore, _Sealing(store, encryption_keys))


_READ: dict[str, Callable[[Any], Iterable[Message]]] = {
    "list_messages": lambda page: page.messages,
    "get_messages": lambda found: found,
    "get_claim": lambda claim: claim.messages,
    "edit": lambda edited: (edited,),
}
"""The messages in what an operation answers."""


class _Opening:
    def __init__(self, store: MessageStore, encryption_keys: EncryptionKeys) -> None:
        self._store = store
        self._encryption_keys = encryption_keys

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        act, messages_in = getattr(self._store, name), _READ.get(name)
        if messages_in is None:
            return act

        async def opened(queue: QueueRef, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as the store's
            found = await act(queue, *given, **named)
            await self._encryption_keys.open(queue.project, messages_in(found))
            return found

        return opened

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        claimed = await self._store.claim(queue, request)
        if request.removes:
            for message in claimed.messages:
                if is_sealed(message.body):
                    message.body = await self._open_popped(queue.project, message.body)
            return claimed
        try:
            await self._encryption_keys.open(queue.project, claimed.messages)
        except Unavailable:
            if claimed.claim_id is not None:
                with suppress(Unavailable):  # then its leases lapse
                    given_back = Settlement("", Act.RELEASE)
                    await self._store.settle_all(queue, claimed.claim_id, given_back)
            raise
        return claimed

    async def _open_popped(self, project: str, body: bytes) -> bytes:
        """Open what is in no store any more: without its key it is handed out as it was stored."""
        try:
            return await self._encryption_keys.open_body(project, body)
        except Unavailable as error:
            shown = {DAMAGED: error.shown, "sealed": json.loads(body)}
            return json.dumps(shown).encode()


class _Sealing:
    """What was written before there was a key is read as it is, and sealed when it changes."""

    def __init__(self, store: ManagementStore, encryption_keys: EncryptionKeys) -> None:
        self._store = store
        self._encryption_keys = encryption_keys

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        **more: Any,  # noqa: ANN401 - as the store's
    ) -> Record:
        kept = value
        if kind in _SEALED_KINDS:
            kept = await self._encryption_keys.seal_record(kind, project, name, value)
        written = await self._store.put_record(kind, project, name, kept, **more)
        return replace(written, value=value)

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        found = await self._store.get_record(kind, project, name)
        return None if found is None else await self._opened(found)

    async def opened(self, records: Sequence[Record]) -> Sequence[Record]:
        readable = []
        for record in records:
            try:
                readable.append(await self._opened(record))
            except RecordDamaged:
                _tell_damaged(record.kind, record.project, record.name)
        return readable

    async def _opened(self, record: Record) -> Record:
        if record.kind not in _SEALED_KINDS or not is_sealed(record.value):
            return record
        return replace(record, value=await self._encryption_keys.open_record(record))


@lru_cache(maxsize=1_000)  # once: the subscriptions of a busy queue are read every second
def _tell_damaged(kind: str, project: str, name: str) -> None:
    logger.error("the %s %r of project %r is sealed, and was damaged", kind, name, project)
