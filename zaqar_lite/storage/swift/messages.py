"""The message store: one method of the seam each, told by the module that does it."""

from collections.abc import Collection, Sequence

from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Claimed,
    Edit,
    IdempotencyKey,
    Message,
    NewMessage,
    Page,
    Posted,
    QueueRef,
    Refusal,
    Selection,
    Stats,
    Swept,
    Take,
)
from zaqar_lite.storage.base import MessageStore, RetriesOf, no_retries
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.changing import Changing
from zaqar_lite.storage.swift.claiming import Claiming, Terms, Wish
from zaqar_lite.storage.swift.dead_letters import DeadLetters
from zaqar_lite.storage.swift.layout import State
from zaqar_lite.storage.swift.posting import Post, Posting
from zaqar_lite.storage.swift.reading import Reading
from zaqar_lite.storage.swift.sweeping import Sweeping


class SwiftMessageStore(MessageStore):
    """Messages and claims as objects."""

    def __init__(self, backend: Backend) -> None:
        promised = {Capability.EXCLUSIVE, Capability.DURABLE}
        self.capabilities = frozenset(
            promised | {Capability.SHARED} if backend.shared else promised
        )
        self._backend = backend
        dead_letters = DeadLetters(backend)
        self._posting = Posting(backend)
        self._reading = Reading(backend)
        self._claiming = Claiming(backend, dead_letters)
        self._changing = Changing(backend, self._reading, dead_letters)
        self._sweeping = Sweeping(backend, dead_letters)

    async def open(self) -> None:
        """Connect; see the seam."""
        await self._backend.open(self)

    async def close(self) -> None:
        """Disconnect when the other store has, too; see the seam."""
        await self._backend.close(self)

    async def ping(self) -> None:
        """Ask Swift, and the coordination service; see the seam."""
        await self._backend.ping()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        return await self._posting.post(Post(queue, messages, client_id, batch_key, version))

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List messages; see the seam."""
        marker, until, limit = selection.marker, selection.until, selection.limit
        exclude_client_id, version = selection.exclude_client_id, selection.version
        include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
        unwanted = None if exclude_client_id is None else layout.client_digest(exclude_client_id)

        def wanted(state: State, now: int) -> bool:
            return (
                state.is_live(now)
                and (include_claimed or not state.is_claimed(now))
                and (include_delayed or state.is_claimed(now) or not state.is_delayed(now))
                and state.poster != unwanted
            )

        return await self._reading.list_messages(
            queue, marker=marker, until=until, limit=limit, wanted=wanted, version=version
        )

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        return await self._reading.get_messages(queue, ids)

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        message_id, body, version = edit.message_id, edit.body, edit.version
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        return await self._changing.edit(
            queue, message_id, body=body, ttl_ms=ttl_ms, delay_ms=delay_ms, version=version
        )

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        return await self._changing.delete(queue, ids, claim_ids)

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        limit, delay_mode, version = take.limit, take.delay_mode, take.version
        dead_letter = take.retries.dead_letter
        return await self._claiming.pop(Wish(queue, limit, delay_mode, dead_letter, version))

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        limit, ttl_ms, grace_ms, client_id = take.limit, take.ttl_ms, take.grace_ms, take.client_id
        delay_mode, dead_letter, version = take.delay_mode, take.retries.dead_letter, take.version
        wish = Wish(queue, limit, delay_mode, dead_letter, version)
        return await self._claiming.claim(wish, Terms(client_id, ttl_ms, grace_ms))

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        return await self._claiming.get_claim(queue, claim_id)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        await self._claiming.renew(queue, claim_id, ttl_ms, grace_ms)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        await self._claiming.release(queue, claim_id)

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        await self._changing.purge(queue)

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam."""
        await self._changing.drop(queue)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        return await self._reading.stats(queue)

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        return await self._reading.split(queue, count)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        return await self._changing.expose(queue, limit)

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Tidy up; see the seam."""
        return await self._sweeping.sweep(limit)
