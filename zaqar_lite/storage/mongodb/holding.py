"""Live claims: read from the messages they hold, which is all there is of a claim."""

from collections.abc import Sequence

from bson import Int64

from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.models import Claim, QueueRef
from zaqar_lite.storage.mongodb.documents import NO_ATTEMPTS, to_message
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.leases import raised_ttl
from zaqar_lite.storage.mongodb.parts import StorePart
from zaqar_lite.storage.mongodb.queues import BRIEF, CLAIMED, QueueState, key_of, reading


class Holding(StorePart):
    """Read and renew claims."""

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        projection = {"l": 0} if details else NO_ATTEMPTS
        found, state = await self._held_by(queue, claim_id, projection)
        first = found[0]
        ends = max(int(document["w"]) for document in found)
        ttl_ms = first.get("ct", ends - state.now)  # earlier versions did not write it here
        began = int(first["cs"]) if "cs" in first else ends - ttl_ms
        return Claim(
            claim_id,
            ttl_ms,
            max(0, state.now - began),
            [to_message(document, state.now) for document in sorted(found, key=lambda d: d["k"])],
        )

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim, and what it holds, live on; see the seam."""
        _, state = await self._held_by(queue, claim_id, BRIEF)
        now = self._connection.now
        end = {"$add": [now, ttl_ms]}
        raised = raised_ttl(now, end, ttl_ms, grace_ms)
        update = {"w": end, "cs": now, "ct": Int64(ttl_ms), **raised}
        mine = {"q": state.key, "cid": claim_id, "s": CLAIMED, "w": {"$gt": state.date}}
        await repeated(
            lambda: self._connection.messages.update_many(mine, [{"$set": update}], hint="claim")
        )

    async def _held_by(
        self, queue: QueueRef, claim_id: str, projection: Document
    ) -> tuple[Sequence[Document], QueueState]:
        """The messages that a live claim holds.

        Raises:
            NotFound: it holds none (any more), so it has ended.
        """
        if is_claim_id(claim_id):
            match = {"q": key_of(queue), "cid": claim_id, "s": CLAIMED}
            found = await self._queues.find_with_state(queue, reading(match, projection), "claim")
            if found.state is not None:
                held = [d for d in found.live if int(d["w"]) > found.state.now]
                if held:
                    return held, found.state
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")
