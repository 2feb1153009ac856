"""What a claim holds, what became of it, and the calls that end it; no socket."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

from zaqar_lite.client.arguments import check_fields
from zaqar_lite.client.endpoints import claims, messages
from zaqar_lite.client.errors import ClaimLost, ZaqarError
from zaqar_lite.client.line import Line
from zaqar_lite.client.models import Held, Message
from zaqar_lite.client.settlements import Settled, Settlement
from zaqar_lite.client.shell import chunks
from zaqar_lite.client.waiting import POLL
from zaqar_lite.client.wire import Call


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How to claim.

    Attributes:
        limit: messages at most; Zaqar Lite gives 1,000, OpenStack's Zaqar 20.
        ttl: seconds that the claim lasts without renewal (60 to 43,200).
        grace: seconds that a message outlives the claim, where its own ttl ends earlier.
        details: whether to ask for claim counts, times, headers and dead-letter sources.
        raw: whether bodies stay JSON text (`RawBody`).
        renew: whether to renew in the background while the block runs.
        renew_every: seconds between renewals; a third of the ttl by default.
        wait: seconds to wait for a message.
        poll: seconds between two requests, about, where the server does not wait.
    """

    limit: int = 10
    ttl: int = 300
    grace: int = 60
    details: bool = False
    raw: bool = False
    renew: bool = True
    renew_every: float | None = None
    wait: float = 0
    poll: float = POLL

    def __post_init__(self) -> None:
        """Refuse what is not of the kind that a field takes, and renewals without a pause.

        Raises:
            TypeError, ValueError: the text names the field.
        """
        check_fields(self)
        if self.renew_every is not None and self.renew_every <= 0:
            message = "renew_every must be above 0; renew=False switches renewals off"
            raise ValueError(message)


class Ledger:
    """What a claim holds and what became of it; no I/O."""

    HOW: ClassVar[str]

    def __init__(self, queue: str, options: ClaimOptions, page_size: int) -> None:
        self.queue = queue
        self.id: str | None = None
        self._messages: Sequence[Message] = ()
        self._begun = False
        self._keeping = True
        self._options = options
        self._page_size = max(page_size, options.limit)
        self._done: dict[str, None] = {}
        self._settled: set[str] = set()
        self._leaving: set[str] = set()
        self._skipped: set[str] = set()
        self._lost: ClaimLost | None = None
        self._until = 0.0
        self._line = Line()

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

    def _iterate(self) -> Iterator[Message]:
        """Yield the messages; the one before counts as processed when the next is asked for.

        Raises:
            ClaimLost: the claim lapsed meanwhile; someone else may have the rest.
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
        self._line.hang_up()

    def keep(self, *, renewing: bool) -> None:
        """Renew the claim in the background, or let it lapse from now on."""
        self._keeping = renewing

    def check(self) -> None:
        """Raise ClaimLost if the claim is known to be lost."""
        if self._lost is not None:
            raise self._lost

    def _enter(self) -> None:
        if self._begun:
            message = "a claim is used once: ask the client for another"
            raise RuntimeError(message)

    def _begin(self, held: Held | None, sent_at: float) -> None:
        self._begun = True
        if held is not None:
            self.id, self._messages = held.id, held.messages
            # Counted from before the request left: never longer than the server counts.
            self._until = max(sent_at, self._line.asked_at) + self._options.ttl

    def _renewals(self) -> float | None:
        """Return the seconds between renewals, None for none."""
        if self.id is None or not self._options.renew:
            return None
        return self._options.renew_every or self._options.ttl / 3

    def _renewal(self, claim_id: str) -> Call[None]:
        return claims.renew(self.queue, claim_id, ttl=self._options.ttl, grace=self._options.grace)

    def _renewed(self, sent_at: float) -> None:
        self._until = sent_at + self._options.ttl

    def _not_renewed(self, error: ZaqarError) -> bool:
        """Note that a renewal failed; return whether the claim is lost."""
        if isinstance(error, ClaimLost):
            self._lost = error
        elif time.monotonic() >= self._until:
            self._lost = ClaimLost("The claim has lapsed", f"it could not be renewed: {error}")
        return self._lost is not None

    def _all_settled(self) -> bool:
        """Return whether the claim has ended because everything it held was settled here."""
        return all(message.id in self._settled for message in self._messages)

    def _may_be_over(self) -> bool:
        """Return whether the claim may have ended because its last message was settled.

        Until its time is over no other client can have its messages.
        """
        return time.monotonic() < self._until or self._all_settled()

    def _look_ups(self) -> Iterator[Call[list[Message]]]:
        """Yield the calls that show whether a claim is over or was lost.

        Messages that do not exist any more were deleted by this program, here or elsewhere.
        """
        gone = self._settled | self._leaving
        left = [one.id for one in self._messages if one.id not in gone]
        for part in chunks(left, self._page_size):
            yield messages.get_messages(self.queue, part)

    def _gathered(self, wanted: Sequence[Settlement]) -> list[Settlement]:
        """Return the deletion of what is done so far, and these settlements."""
        named = {one.id for one in wanted}
        return [*(Settlement.delete(one) for one in self._done if one not in named), *wanted]

    @contextlib.contextmanager
    def _settling(self, settlements: Sequence[Settlement]) -> Iterator[str]:
        """Yield the claim's id, and note what is being settled for a renewal that comes meanwhile.

        Raises:
            TypeError: nothing was claimed.
        """
        if self.id is None:
            message = self.HOW if not self._begun else "the claim is empty"
            raise TypeError(message)
        leaving = {one.id for one in settlements if not one.keeps}
        self._leaving |= leaving
        try:
            yield self.id
        finally:
            self._leaving -= leaving

    def _left(self, settlements: Sequence[Settlement], results: Sequence[Settled]) -> None:
        """Note what the claim does not hold any more."""
        for settlement, result in zip(settlements, results, strict=True):
            if result.done and not settlement.keeps:
                self._settled.add(settlement.id)
                self._done.pop(settlement.id, None)

    def _last_settlements(self) -> list[Settlement] | None:
        """Return settlements that end the claim in one request; None if `_ending` needs only one.

        Deleting all and releasing all are one request each, on every server.
        """
        rest = [
            one.id
            for one in self._messages
            if one.id not in self._done and one.id not in self._settled
        ]
        if not (self._done and rest) or len(self._done) + len(rest) > self._page_size:
            return None
        return [
            *(Settlement.delete(one) for one in self._done),
            *(Settlement.release(one) for one in rest),
        ]

    def _acknowledgements(self) -> Iterator[Call[None]]:
        """Yield the calls that delete what is done, checked by the claim's id."""
        if self.id is None:
            return
        for part in chunks(list(self._done), self._page_size):
            yield messages.delete_messages(self.queue, part, claim_ids=[self.id])
            self._settled.update(part)
            for one in part:
                del self._done[one]

    def _ending(self) -> Iterator[Call[None]]:
        """Yield the calls that end the claim: delete what is done, release the rest."""
        yield from self._acknowledgements()
        if self.id is not None and not self._all_settled():
            rest = [one.id for one in self._messages if one.id not in self._settled]
            yield claims.release(self.queue, self.id, ids=rest)

    def _ended_badly(self, error: ZaqarError, during: BaseException | None) -> None:
        """Raise the error, or add it as a note to the exception that is being raised already."""
        if during is None:
            raise error
        during.add_note(f"The claim on {self.queue} could not be ended either: {error}")
