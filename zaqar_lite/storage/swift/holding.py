"""Claims that are held: each has an object of its own, and ends with its last message."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.models import Claim, QueueRef
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Listed
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import Reading

_MAX_CLAIMS = 10_000
"""Claims of this process whose end it will see."""


@dataclass(slots=True)
class Record:
    """A claim's own object: its time in the content type, the names of what it holds inside."""

    claim_id: str
    started_at: int
    ttl_ms: int
    names: Sequence[str]

    @property
    def expires_at(self) -> int:
        """When the claim lapses."""
        return self.started_at + self.ttl_ms

    @property
    def content_type(self) -> str:
        """Its time."""
        return layout.content_type("claim", s=self.started_at, t=self.ttl_ms, x=self.expires_at)


class Holding(Reading):
    """Read, renew and release claims."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._outstanding: OrderedDict[str, set[str]] = OrderedDict()

    async def _put_record(self, container: str, record: Record, lease: Lease) -> None:
        await self._objects.put(
            container,
            layout.CLAIMS + record.claim_id,
            record.content_type,
            " ".join(record.names).encode(),
            lease,
            ends=record.expires_at,
        )

    async def _record(self, container: str, claim_id: str) -> Record:
        """Read a live claim.

        Raises:
            NotFound: there is none of this id.
        """
        if is_claim_id(claim_id):
            reply = await self._objects.get(container, layout.CLAIMS + claim_id)
            if reply.found:
                time = layout.parameters(reply.headers["Content-Type"])
                names = reply.body.decode().split()
                record = Record(claim_id, int(time["s"]), int(time["t"]), names)
                if record.expires_at > self._now():
                    return record
        raise _no_claim(claim_id)

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim and what it holds; see the seam."""
        container = self._container(queue)
        record, tail = await asyncio.gather(
            self._record(container, claim_id), self._tails.look(container)
        )
        found = await self._fetch_all(container, record.names)
        now = self._now()
        held = [m.view(now) for m in found if is_held(claim_id, m.listed, tail.birth, now)]
        if not held:
            raise _no_claim(claim_id)
        return Claim(claim_id, record.ttl_ms, now - record.started_at, held)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        container = self._container(queue)

        async def work(lease: Lease) -> None:
            record = await self._record(container, claim_id)
            held = await self._held(container, record, lease)
            now = self._now()
            renewed = Record(claim_id, now, ttl_ms, record.names)
            if not held:
                raise _no_claim(claim_id)
            marked = await together(
                self._objects.mark(
                    container,
                    layout.CLAIMS + claim_id,
                    renewed.content_type,
                    lease,
                    ends=renewed.expires_at,
                ),
                *(
                    self._objects.mark_message(
                        container, one.name, one.state.held_until(now, ttl_ms, grace_ms), lease
                    )
                    for one in held
                ),
            )
            if not marked[0]:
                raise _no_claim(claim_id)

        await self._backend.locked(queue, work)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        container = self._container(queue)

        async def work(lease: Lease) -> None:
            try:
                record = await self._record(container, claim_id)
            except NotFound:
                return
            held = await self._held(container, record, lease)
            self._tails.queue(container).something_may_be_ready()
            await together(
                *(
                    self._objects.mark_message(
                        container, one.name, replace(one.state, claim_expires_at=0), lease
                    )
                    for one in held
                )
            )
            await self._end(container, claim_id, lease)

        if is_claim_id(claim_id):
            await self._backend.locked(queue, work)

    def _watch_end(self, claim_id: str, names: set[str]) -> None:
        """Remember what a claim of this process holds, so that its end is seen."""
        self._outstanding[claim_id] = names
        if len(self._outstanding) > _MAX_CLAIMS:
            self._outstanding.popitem(last=False)

    async def _end(self, container: str, claim_id: str, lease: Lease) -> None:
        """Remove the record of a claim that holds nothing; what is left of it is the sweep's."""
        self._outstanding.pop(claim_id, None)
        with suppress(Unavailable):
            await self._objects.remove(container, layout.CLAIMS + claim_id, lease)

    async def _end_empty(
        self, container: str, claim_ids: Collection[str], gone: Iterable[Listed], lease: Lease
    ) -> None:
        """End those claims of this process whose last message is gone."""
        names = {listed.name for listed in gone}
        for claim_id in claim_ids:
            left = self._outstanding.get(claim_id)
            if left is not None:
                left -= names
                if not left:
                    await self._end(container, claim_id, lease)

    async def _held(self, container: str, record: Record, lease: Lease) -> list[Listed]:
        """What a claim holds by now, as the messages themselves tell; under the lock."""
        tail = await self._tails.load(container, lease)
        states = await together(*(self._objects.state(container, name) for name in record.names))
        now = self._now()
        return [
            listed
            for name, state in zip(record.names, states, strict=True)
            if state is not None
            and is_held(record.claim_id, listed := Listed(name, state), tail.birth, now)
        ]


def is_held(claim_id: str, listed: Listed, birth: int, now: int) -> bool:
    """Whether a claim holds a message."""
    state = listed.state
    mine = state.claim_id == claim_id and state.is_claimed(now)
    return mine and state.is_live(now) and listed.position >= birth


def _no_claim(claim_id: str) -> NotFound:
    return NotFound(f"Claim {claim_id} does not exist or has expired.")
