"""Claims and pops, and settling the messages of a claim."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from zaqar_lite.domain.errors import QueueChanged, Unavailable
from zaqar_lite.domain.ids import are_message_ids, is_claim_id, is_message_id, new_claim_id
from zaqar_lite.domain.limits import MAX_PAGE_BYTES
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claimed,
    ClaimRequest,
    DeadLetter,
    DelayMode,
    Message,
    Move,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.redis.codec import pack_client, pack_settlements
from zaqar_lite.storage.redis.faults import InDoubt
from zaqar_lite.storage.redis.limiter import FEW_TAKEN
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.runner import Runner, policy_words

_MODES = {DelayMode.IGNORE: "I", DelayMode.HONOUR: "H"}
_OUTCOMES = {
    ord("D"): Outcome.DONE,
    ord("N"): Outcome.NOT_FOUND,
    ord("L"): Outcome.LAPSED,
    ord("H"): Outcome.HELD,
    ord("T"): Outcome.NO_TARGET,
}
NO_CLAIM = bytes(16)
"""The id of no claim."""
MAX_CLAIMED = 200
"""Most messages of one claim: one step of Redis may claim, read, extend or end all of them."""
_END_AFTER = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
"""Seconds between the attempts to end a claim whose answer was lost."""
_STEP = 100
"""Messages that one step settles or moves: under 2 ms in each of the two queues."""


class Claiming(MessageStore):
    """Take messages and settle them: one script, or two if there are dead letters among them."""

    _runner: Runner
    _outbox: Outbox
    examined = 0
    """How many entries this store's claims, pops and lists have looked at (for tests)."""

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Hand out ready messages under a new claim, or for good; see the seam.

        A claim whose answer is lost is ended as soon as Redis answers again: nobody knows it.
        """
        if request.removes:
            return await self._take(queue, None, request)
        claim_id = new_claim_id()
        try:
            return await self._take(queue, claim_id, request)
        except InDoubt:
            self._runner.follow_ups.begin(self._end_unknown(queue, claim_id))
            raise

    async def _end_unknown(self, queue: QueueRef, claim_id: str) -> None:
        """End a claim that may have been made; where that fails for long, it ends by its ttl."""
        for pause in _END_AFTER:
            await asyncio.sleep(pause)
            with suppress(Unavailable):
                await self.settle(queue, claim_id, Settlement("", Act.RELEASE))
                return

    async def _take(self, queue: QueueRef, claim_id: str | None, request: ClaimRequest) -> Claimed:
        """Take messages, mostly in one step: another goes on where large ones filled it.

        The answer has what was taken even if a later step fails; but a claim that may hold what
        nobody is told is ended as a whole.
        """
        messages: list[Message] = []
        moved, size, limit = 0, 0, min(request.limit, MAX_CLAIMED)
        while True:
            left = replace(request, limit=limit - len(messages))
            try:
                status, some, count = await self._take_once(
                    queue, claim_id, left, room=MAX_PAGE_BYTES - size, again=bool(messages)
                )
            except (Unavailable, QueueChanged) as exc:
                if not messages or (claim_id and isinstance(exc, InDoubt)):
                    raise
                return Claimed(claim_id, messages, moved, True)
            messages += some
            moved += count
            size += sum(len(message.body) for message in some)
            is_over = len(messages) >= limit or size >= MAX_PAGE_BYTES
            if status != b"full" or not some or is_over:
                return Claimed(claim_id if messages else None, messages, moved, status != b"ok")

    async def _take_once(
        self,
        queue: QueueRef,
        claim_id: str | None,
        request: ClaimRequest,
        *,
        room: int,
        again: bool,
    ) -> tuple[bytes, list[Message], int]:
        """Take messages in one step; return its status, them, and how many others it moved.

        Their bodies end with `room` bytes. `again` says that the claim may already hold messages.
        """
        reply = await self._runner.run(
            queue,
            "claim",
            "" if request.version is None else request.version,
            b"" if claim_id is None else bytes.fromhex(claim_id),
            request.limit,
            *policy_words(queue, request.retries),
            request.ttl_ms,
            request.grace_ms,
            _MODES[request.delay_mode],
            pack_client(request.client_id),
            "1" if request.details else "",
            "1" if again else "",
            room,
            is_long=request.limit > FEW_TAKEN,
            has_policy=True,
        )
        status, now, examined, moved = reply[:4]
        self.examined += examined
        if moved:
            await self._outbox.try_to_drain(queue)
        try:
            messages = await self._runner.read(
                queue,
                reply,
                4,
                now,
                details=request.details,
                show_delay=request.delay_mode is not DelayMode.IGNORE,
            )
        except Unavailable as exc:  # the claim was made, and nobody will know it
            raise InDoubt(exc.shown, detail=str(exc)) from exc
        return status, messages, moved

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim; see the seam."""
        if isinstance(settlements, Settlement):
            every, was_held, moved, more = [replace(settlements, message_id="")], False, 0, True
            while more:
                done, count, more = await self._settle_some(
                    queue, claim_id, every, retries, version, whole=True
                )
                was_held, moved, version = was_held or b"D" in done, moved + count, None
            return Settled([Outcome.DONE if was_held else Outcome.NOT_FOUND], moved)
        outcomes, moved = [Outcome.NOT_FOUND] * len(settlements), 0
        chosen: Sequence[int] = range(len(settlements))
        if not are_message_ids([one.message_id for one in settlements]):
            chosen = [number for number in chosen if is_message_id(settlements[number].message_id)]
        while True:
            some = [settlements[number] for number in chosen[:_STEP]]
            letters, count, _ = await self._settle_some(queue, claim_id, some, retries, version)
            moved += count
            for number, letter in zip(chosen, letters, strict=False):
                outcomes[number] = _OUTCOMES[letter]
            chosen = chosen[len(letters) :]
            if not chosen:
                break
            version = None  # the first step decided it for all
        return Settled(outcomes, moved)

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue; see the seam. Each step moves up to 100, or 192 KiB."""
        outcomes = [Outcome.NOT_FOUND] * len(ids)
        left = [number for number, one in enumerate(ids) if is_message_id(one)]
        policy = RetryPolicy(DeadLetter(move.target, ttl_ms=move.ttl_ms))
        while left:
            _, _, done, *letters = await self._runner.run(
                queue,
                "move",
                "",
                move.delay_ms,
                "1" if move.reset else "",
                *policy_words(queue, policy),
                *(bytes.fromhex(ids[number]) for number in left[:_STEP]),
                is_long=True,
                has_policy=True,
            )
            for number, letter in zip(left, done, strict=False):
                outcomes[number] = _OUTCOMES[letter]
            left = left[len(done) :]
            await self._outbox.try_to_drain(queue, letters)
        return outcomes

    async def _settle_some(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        retries: RetryPolicy,
        version: int | None,
        *,
        whole: bool = False,
    ) -> tuple[bytes, int, bool]:
        """Settle what one script may.

        Return a code for each of the first messages, how many were moved, and whether there are
        more.
        """
        _, moved, outcomes, more, letters = await self._runner.run(
            queue,
            "settle",
            "" if version is None else version,
            bytes.fromhex(claim_id) if is_claim_id(claim_id) else NO_CLAIM,
            "1" if whole else "",
            *policy_words(queue, retries),
            *pack_settlements(settlements),
            repeatable=whole,
            is_long=len(settlements) > FEW_TAKEN,
            has_policy=True,
        )
        if moved:
            self._outbox.begin_to_drain(queue, letters)
        return outcomes, moved, bool(more)
