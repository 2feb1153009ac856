"""Claims as context managers: renewed in the background, processed messages deleted at the end.

What counts as processed: a message is done when the loop over the claim asks for the next one, or
ends. If the body raises or breaks, the message in hand is not done, unless `claim.done(message)`
said so before. What is not done is released at the end and can be claimed again at once.

`for message in client.claim("q")` (`async for` with the async client) without a `with` block claims
when the loop begins and ends the claim with the loop.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Self, TypeVar

from zaqar_lite.client.async_runner import AsyncPart
from zaqar_lite.client.base_client import BaseClient, chunks
from zaqar_lite.client.endpoints import claims, messages
from zaqar_lite.client.endpoints.claims import ClaimOptions
from zaqar_lite.client.errors import BadRequest, ClaimLost, MessageNotFound, Unsupported, ZaqarError
from zaqar_lite.client.long_polling import Connection
from zaqar_lite.client.models import Message
from zaqar_lite.client.settlements import Settled, Settlement
from zaqar_lite.client.steps import Background, Do, Sleep, Steps, method
from zaqar_lite.client.sync_runner import SyncPart
from zaqar_lite.client.termination import Hold, ToTheEnd

T = TypeVar("T")


class BaseClaim:
    """What a claim holds, what became of it, and the steps that settle, renew and end it."""

    HOW: ClassVar[str]

    def __init__(
        self,
        client: BaseClient,
        queue: str,
        options: ClaimOptions,
        connection: Connection | None = None,
    ) -> None:
        """Claim by these options once the block begins; who has the connection can end the wait."""
        self._client = client
        self.queue = queue
        self.id: str | None = None
        self._messages: Sequence[Message] = ()
        self._begun = False
        self._keeping = True
        self._options = options
        self._page_size = max(client.page_size, options.limit)
        self._done: dict[str, None] = {}
        self._settled: set[str] = set()
        self._leaving: set[str] = set()
        self._skipped: set[str] = set()
        self._lost: ClaimLost | None = None
        self._until = 0.0
        self._connection = connection or Connection()
        self._block = Connection()
        """Hung up at the end of the block, which ends the renewals."""
        self._end_renewals: Callable[[], object] | None = None
        self._let_go: Callable[[], None] | None = None

    @property
    def messages(self) -> Sequence[Message]:
        """What was claimed.

        Raises:
            TypeError: nothing has been asked for yet: the block has not begun.
        """
        if not self._begun:
            raise TypeError(self.HOW)
        return self._messages

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; the one before counts as processed when the next is asked for.

        Raises:
            ClaimLost: the claim lapsed meanwhile; someone else may have the rest.
            TypeError: this is not in the block of an async claim: use `async for`.
        """
        for message in self.messages:
            if message.id in self._done or message.id in self._settled:
                continue
            self.check()
            yield message
            if message.id not in self._skipped:
                self.done(message)

    def done(self, *processed: Message) -> None:
        """Mark messages as processed: they are deleted when the block ends."""
        for message in processed:
            if message.id not in self._settled:
                self._done[message.id] = None

    def skip(self, *unprocessed: Message) -> None:
        """Mark messages as not processed: they are released when the block ends."""
        for message in unprocessed:
            self._skipped.add(message.id)
            self._done.pop(message.id, None)

    def hang_up(self) -> None:
        """Stop waiting for messages: the claim begins with none, or with those that are ready."""
        self._connection.hang_up()

    def keep(self, *, renewing: bool) -> None:
        """Renew the claim in the background, or let it lapse from now on."""
        self._keeping = renewing

    def check(self) -> None:
        """Raise ClaimLost if the claim is known to be lost, or was not renewed before its end."""
        renewing = self._end_renewals is not None and self._keeping
        if renewing and self._lost is None and time.monotonic() >= self._until:
            self._lost = ClaimLost("The claim has lapsed", "it could not be renewed in time")
        if self._lost is not None:
            raise self._lost

    def _all_settled(self) -> bool:
        """Return whether the claim has ended because everything it held was settled here."""
        return all(message.id in self._settled for message in self._messages)

    def entering(self) -> Steps[None]:
        """Return the steps at the beginning of the block: claim, and renew in the background."""
        if self._begun:
            message = "a claim is used once: ask the client for another"
            raise RuntimeError(message)
        if self._client.release_on_sigterm:
            self._let_go = yield Hold()
        try:
            yield ToTheEnd(self._claiming, self._client.release_on_sigterm, self._connection)
            if self.id is not None and self._options.renew:
                self._end_renewals = yield Background(self._renewals(self.id), "zaqar-renew")
        except BaseException:
            self._stop_listening()
            raise

    def leaving(self, error: BaseException | None) -> Steps[None]:
        """Return the steps at the end of the block, which `error` has ended."""
        try:
            yield ToTheEnd(lambda _: self._end(), on_sigterm=self._let_go is not None)
        except ZaqarError as failure:
            if error is None:
                raise
            error.add_note(f"The claim on {self.queue} could not be ended either: {failure}")
        finally:
            self._stop_listening()

    def _stop_listening(self) -> None:
        if self._let_go is not None:
            let_go, self._let_go = self._let_go, None
            let_go()

    def _claiming(self, stopping: Callable[[], bool]) -> Steps[None]:
        """Make the claim; one that waits for messages can be hung up meanwhile."""
        connection = self._connection if self._options.wait else None
        sent_at = time.monotonic()
        held = yield from claims.create(self._client, self.queue, self._options, connection)
        self._begun = True
        if held is not None:
            self.id, self._messages = held.id, held.messages
            # Counted from before the request left: never longer than the server counts.
            self._until = max(sent_at, self._connection.asked_at) + self._options.ttl
        if stopping():
            with contextlib.suppress(ZaqarError):
                yield from self._give_back()

    def _renewals(self, claim_id: str) -> Steps[None]:
        """Renew until the block ends, or until there is nothing left to renew."""
        every = self._options.renew_every or self._options.ttl / 3
        while True:
            yield Sleep(every, self._block)
            if self._block.over or not (yield from self._renew_once(claim_id)):
                self._until = math.inf  # there is nothing to hold, or it is known to be lost
                return

    @method
    def delete_done(self) -> Steps[None]:
        """Delete now what is done so far, instead of at the end.

        Raises:
            ClaimLost: the claim lapsed; someone else may have the messages.
        """
        return self._delete_done()

    def _delete_done(self) -> Steps[None]:
        for part in chunks(list(self._done), self._page_size):
            call = messages.delete_messages(self.queue, part, claim_ids=[self.id or ""])
            yield from self._client._exchange(call)
            self._settled.update(part)
            for one in part:
                del self._done[one]

    @method
    def settle(self, *settlements: Settlement) -> Steps[list[Settled]]:
        """Settle messages now; return one result for each.

        What is done so far is deleted in the same request.

        Raises:
            ClaimLost: what is done could not be deleted; someone else may have it.
            Unsupported: this server cannot settle single messages.
        """
        return self._settle_now(*settlements)

    def _settle_now(self, *settlements: Settlement) -> Steps[list[Settled]]:
        """Return the steps of `settle`."""
        named = {one.id for one in settlements}
        along = [Settlement.delete(one) for one in self._done if one not in named]
        results = yield from self._carry_out([*along, *settlements])
        for result in results[: len(along)]:
            result.check()
        return results[len(along) :]

    @method
    def release(
        self,
        message: Message | str,
        *,
        delay: int | None = None,
        failed: bool = False,
        reason: str | None = None,
        detail: str | None = None,
    ) -> Steps[None]:
        """Give a message back now: it can be claimed again at once, or after `delay` seconds.

        `failed` counts it towards the queue's `_max_failures`; without a delay of its own it waits
        as the queue's `_retry_backoff` says then. Its attempts show `reason` (128 bytes) and
        `detail` (2 KiB). What is done so far is deleted in the same request.

        Raises:
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot; `skip` gives it back at the end of the block.
        """
        return self._settle_one(
            Settlement.release(message, delay=delay, failed=failed, reason=reason, detail=detail)
        )

    @method
    def extend(self, message: Message | str, ttl: int) -> Steps[None]:
        """Hold one message for `ttl` seconds from now, whatever becomes of the claim's others.

        Raises:
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot; `Client.renew_claim` holds all for longer.
        """
        return self._settle_one(Settlement.extend(message, ttl))

    @method
    def dead(
        self, message: Message | str, *, reason: str | None = None, detail: str | None = None
    ) -> Steps[None]:
        """Send a message to the dead letters now.

        Raises:
            NoDeadLetters: its queue has no place for them; it is still held.
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot.
        """
        return self._settle_one(Settlement.dead(message, reason=reason, detail=detail))

    def _settle_one(self, settlement: Settlement) -> Steps[None]:
        (yield from self._settle_now(settlement))[0].check()

    def _carry_out(self, settlements: Sequence[Settlement]) -> Steps[list[Settled]]:
        if not settlements:
            return []
        if self.id is None:
            raise TypeError(self.HOW if not self._begun else "the claim is empty")
        # A renewal that comes meanwhile must not miss them.
        leaving = {one.id for one in settlements if not one.keeps}
        self._leaving |= leaving
        try:
            results = yield from claims.settle_in_parts(
                self._client, self.queue, self.id, settlements
            )
        finally:
            self._leaving -= leaving
        for settlement, result in zip(settlements, results, strict=True):
            if result.done and not settlement.keeps:
                self._settled.add(settlement.id)
                self._done.pop(settlement.id, None)
        return results

    def _end(self) -> Steps[None]:
        """Delete what is done and release the rest, in one request if it can be."""
        self._block.hang_up()
        if self._end_renewals is not None:
            yield Do(self._end_renewals)
        yield from self._settled_meanwhile()
        done = list(self._done)
        rest = [
            one.id
            for one in self._messages
            if one.id not in self._done and one.id not in self._settled
        ]
        # Deleting all and releasing all are one request each, on every server.
        if done and rest and self._client.settles and len(done) + len(rest) <= self._page_size:
            # A server that can't do this, or takes fewer at once, is asked in two steps.
            with contextlib.suppress(Unsupported, BadRequest):
                results = yield from self._carry_out(
                    [*map(Settlement.delete, done), *map(Settlement.release, rest)]
                )
                for result in results[: len(done)]:
                    result.check()
                return
        yield from self._give_back()

    def _give_back(self) -> Steps[None]:
        yield from self._delete_done()
        if self.id is not None and not self._all_settled():
            rest = [one.id for one in self._messages if one.id not in self._settled]
            yield from self._client._exchange(claims.release(self.queue, self.id, ids=rest))

    def _settled_meanwhile(self) -> Steps[None]:
        """Return the steps that wait for requests under way that settle messages."""
        yield from ()

    def _renew_once(self, claim_id: str) -> Steps[bool]:
        """Renew the claim; return whether there is still something to renew."""
        if self._all_settled():
            return False
        if not self._keeping:
            return True
        ttl, sent_at = self._options.ttl, time.monotonic()
        renew = claims.renew(self.queue, claim_id, ttl, self._options.grace, self._block)
        try:
            yield from self._client._exchange(renew)
        except ClaimLost as error:
            if not (yield from self._is_over()):
                self._lost = error
            return False
        except ZaqarError as error:
            if time.monotonic() < self._until:
                return True
            self._lost = ClaimLost("The claim has lapsed", f"it could not be renewed: {error}")
            return False
        self._until = sent_at + ttl
        return True

    def _is_over(self) -> Steps[bool]:
        """Return whether the claim has ended because its last message was settled.

        Until its time is over no other client can have its messages: those that do not exist any
        more were deleted by this program, here or elsewhere.
        """
        if time.monotonic() >= self._until and not self._all_settled():
            return False
        gone = self._settled | self._leaving
        left = [one.id for one in self._messages if one.id not in gone]
        for part in chunks(left, self._page_size):
            try:
                yield from self._client._exchange(messages.get_messages(self.queue, part))
            except MessageNotFound:
                continue
            except ZaqarError:
                pass  # unknown: take it for lost
            return False
        return True


class Claim(BaseClaim, SyncPart):
    """A sync claim; made by `Client.claim`."""

    HOW = "use `with client.claim(...) as claim:`, or iterate: `for message in client.claim(...)`"

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; the one before counts as processed when the next is asked for.

        Outside of a `with` block the loop is one: it claims, and deletes and releases at its end.

        Raises:
            ClaimLost: the claim lapsed meanwhile; someone else may have the rest.
        """
        with contextlib.nullcontext() if self._begun else self:
            yield from super().__iter__()

    def __enter__(self) -> Self:
        self._run(self.entering())
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._run(self.leaving(error))


class AsyncClaim(BaseClaim, AsyncPart):
    """An async claim; made by `AsyncClient.claim`. In its block the loop is a plain `for`.

    Settlements of single messages that are awaited in one turn of the event loop are one request.
    """

    HOW = (
        "use `async with client.claim(...) as claim:`, or iterate: "
        "`async for message in client.claim(...)`"
    )

    def __init__(self, client: BaseClient, queue: str, options: ClaimOptions) -> None:
        super().__init__(client, queue, options)
        self._turn: list[Settlement] = []
        self._sending: list[asyncio.Task[list[Settled]]] = []

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the messages; outside of an `async with` block, make and end the claim too."""
        async with contextlib.nullcontext() if self._begun else self:
            for message in self:
                yield message

    async def __aenter__(self) -> Self:
        await self._run(self.entering())
        return self

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        await self._run(self.leaving(error))

    def _settle_one(self, settlement: Settlement) -> Steps[None]:
        yield Do(self._settle_in_turn, settlement)

    async def _settle_in_turn(self, settlement: Settlement) -> None:
        """Settle a message in one request with the others of this turn of the event loop."""
        if not self._turn:
            self._sending = [one for one in self._sending if not one.done()]
            self._sending.append(asyncio.create_task(self._send_turn(), name="zaqar-settle"))
        self._turn.append(settlement)
        place, sending = len(self._turn) - 1, self._sending[-1]
        (await asyncio.shield(sending))[place].check()

    async def _send_turn(self) -> list[Settled]:
        turn, self._turn = self._turn, []
        return await self._run(self._settle_now(*turn))

    def _settled_meanwhile(self) -> Steps[None]:
        yield Do(partial(asyncio.gather, *self._sending, return_exceptions=True))
