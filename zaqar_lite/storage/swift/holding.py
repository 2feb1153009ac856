"""What is known of claims: each has an object of its own, and ends with its last message."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.endings import Ending
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.models import RetryPolicy
from zaqar_lite.domain.refusals import no_claim
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.ending import ended
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import Reading

_MAX_CLAIMS = 10_000
"""Claims of this process whose messages it remembers, to remove the claim with the last one."""


@dataclass(slots=True)
class Record:
    """A claim's own object: its content type tells its time, its content the names it holds.

    No lease of its messages ends after `ends_at`.
    """

    claim_id: str
    started_at: int
    ttl_ms: int
    ends_at: int
    names: Sequence[str]

    @property
    def content_type(self) -> str:
        """Its time."""
        return layout.content_type("claim", s=self.started_at, t=self.ttl_ms, x=self.ends_at)


class Holding(Reading):
    """Read and write what claims and leases are."""

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
            ends=record.ends_at,
        )

    async def _mark_record(self, container: str, record: Record, lease: Lease) -> bool:
        """Write a claim's time anew; False when the object is gone."""
        name, ends = layout.CLAIMS + record.claim_id, record.ends_at
        return await self._objects.mark(container, name, record.content_type, lease, ends=ends)

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
                record = Record(claim_id, int(time["s"]), int(time["t"]), int(time["x"]), names)
                if record.ends_at > self._now():
                    return record
        raise no_claim(claim_id)

    def _announce_returned(self, container: str, count: int, at: int) -> None:
        """Announce messages that are ready from an instant on."""
        if at > self._now():
            self._hints.announce_due(container, at)
        else:
            self._hints.announce_ready(container, count)

    async def _mark_held(self, container: str, one: Listed, state: State, lease: Lease) -> bool:
        """Write a lease; the message's history and index live as long as the message then does."""
        await self._keep(container, one, state, lease)
        return await self._objects.mark_message(container, one.name, state, lease)

    async def _keep(self, container: str, one: Listed, state: State, lease: Lease) -> None:
        """Let a message's history, and what finds it by its id, live as long as its new state."""
        if state.expires_at > one.state.expires_at:
            await self._histories.keep(container, one, state.expires_at, lease)
            await self._dead_letters.keep_index(container, one, state, lease)

    async def _end_attempt(
        self, container: str, one: Listed, ending: Ending, lease: Lease
    ) -> State:
        """Write the attempt that ends; answer the state that is to be written then."""
        now = self._now() if ending.outcome is Ended.LAPSED else ending.at
        state, attempt = ended(one.state, ending, now)
        await self._histories.add(container, one, attempt, state.expires_at, lease)
        await self._dead_letters.keep_index(container, one, state, lease)
        return state

    async def _end_lapse(
        self, container: str, message: Fetched, retries: RetryPolicy, lease: Lease, *, marks: bool
    ) -> Fetched:
        """End the attempt of a message whose lease has lapsed; answer another one as it is.

        It is done under the lock. A message that is parked now is written here. A message that is
        ready is written here with `marks`, else by the caller. The caller moves dead letters.
        """
        before = message.state
        if not before.has_lapsed(self._now()):
            return message
        ending = Ending.by_lapse(before.claim_expires_at, retries)
        state = await self._end_attempt(container, message.listed, ending, lease)
        if not state.move_reason and (marks or state.claim_expires_at):
            await self._objects.mark_message(container, message.listed.name, state, lease)
        return message.with_state(state)

    def _watch_end(self, claim_id: str, names: set[str]) -> None:
        """Remember what a claim of this process holds, to remove it with its last message."""
        self._outstanding[claim_id] = names
        if len(self._outstanding) > _MAX_CLAIMS:
            self._outstanding.popitem(last=False)

    async def _end(self, container: str, claim_id: str, lease: Lease) -> None:
        """Remove the object of a claim that holds nothing; if that fails, the sweep does."""
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
    mine = listed.state.claim_id == claim_id and listed.state.is_claimed(now)
    return mine and listed.exists(birth, now)
