"""The states of messages, and the rules by which one message changes.

They change a document as it was read, at the instant it was read. `Changing` then stores the
change if the message is still as it was.
"""

from typing import NamedTuple

from bson import Int64
from bson.datetime_ms import DatetimeMS

from zaqar_lite.domain.attempts import MOVED, Ended, with_attempt
from zaqar_lite.domain.models import (
    ClaimRequest,
    DeadLetter,
    Edit,
    Move,
    Origin,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.refusals import Deadlines, edited, no_failed_list
from zaqar_lite.domain.settlements import (
    PARKED_MARGIN_MS,
    Act,
    Ending,
    HandOut,
    Outcome,
    Settlement,
)
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.documents import (
    attempts_of,
    origin_of,
    stored_attempt,
    stored_origin,
)
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.queues import QueueState, key_of

POP_TIME_MS = 60_000
"""How long a pop may take to read and delete its messages; then the sweep makes them ready."""


class Transitions(NamedTuple):
    """Decide on messages of one queue by its state at `state.now`."""

    queue: QueueRef
    state: QueueState
    retries: RetryPolicy

    def settle(
        self, document: Document, claim_id: str, settlement: Settlement, *, renews: bool = False
    ) -> Outcome:
        """Do what a settlement says; the seam has the rule.

        One that `renews` lets the claim begin anew, where it extends leases.
        """
        if not self.is_live(document):
            return Outcome.NOT_FOUND
        is_held, is_last_claim = self.state.is_held(document), document.get("cid") == claim_id
        if not is_held or not is_last_claim:
            ended = Ended(document["l"]) if document.get("l") else None
            return settlement.without_lease(
                is_held=is_held, is_last_claim=is_last_claim, ended=ended
            )
        match settlement.act:
            case Act.ACK:
                document["s"] = states.GONE
            case Act.EXTEND:
                self._hold(document, settlement.ttl_ms, settlement.grace_ms)
                if renews:
                    document["cs"], document["ct"] = self.state.date, Int64(settlement.ttl_ms)
            case Act.DEAD if self.retries.dead_letter is None:
                return Outcome.NO_TARGET
            case _:
                self._end(document, Ending.by(settlement, self.state.now, self.retries))
        return Outcome.DONE

    def take(self, document: Document, request: ClaimRequest, token: str) -> None:
        """Let a claim hold a ready message, or a pop that is about to delete it."""
        document["cid"], document["s"] = token, states.CLAIMED
        if request.removes:
            document["s"], document["w"] = states.POPPED, self._after(POP_TIME_MS)
            return
        self._hold(document, request.ttl_ms, request.grace_ms)
        document["n"] += 1
        document |= {"cu": request.client_id, "ca": self.state.date}
        document["cs"], document["ct"] = self.state.date, Int64(request.ttl_ms)
        document.pop("l", None)

    def wake(self, document: Document) -> None:
        """Make ready what is due, or before its time; end a lease whose time is over.

        A lapse is a failure, of what has not expired.
        """
        if document["s"] == states.CLAIMED and self.is_live(document):
            self._end(document, Ending.by_lapse(int(document["w"]), self.retries))
        elif document["s"] != states.READY:
            if document["s"] == states.DELAYED:
                document["d"] = min(document["d"], self.state.date)
            self._return(document, 0)

    def edit(self, document: Document, edit: Edit) -> None:
        """Change a delayed message."""
        due = int(document["w"]) if document["s"] == states.DELAYED else 0
        due, expires = edited(edit, Deadlines(due, int(document["e"])), self.state.now)
        if edit.body is not None:
            document["b"], document["z"] = edit.body, len(edit.body)
        if edit.ttl_ms is not None:
            document["t"], document["e"] = Int64(edit.ttl_ms), DatetimeMS(expires)
        if edit.delay_ms is not None:
            document["d"] = document["w"] = DatetimeMS(due)
        if edit.delay_ms == 0:
            document["s"] = states.READY
            del document["w"]

    def is_live(self, document: Document) -> bool:
        """Whether the message exists in the queue."""
        is_here = document.get("q", self.state.key) == self.state.key
        return is_here and document["s"] in states.LIVE and self.state.has(document)

    def _end(self, document: Document, ending: Ending) -> None:
        """End the hand-out of a message: it is given back, or becomes a dead letter."""
        failures = document.get("f", 0)
        hand_out = HandOut(document["n"], int(document["ca"]), document.get("cu"), failures)
        result = ending.apply(hand_out)
        attempts = with_attempt(attempts_of(document), result.attempt)
        document["a"] = [stored_attempt(each) for each in attempts]
        document["l"] = ending.outcome.value
        if result.failures > failures:
            document["f"] = result.failures
        if result.letter_reason and self.retries.dead_letter is not None:
            self.bury(document, self.retries.dead_letter, result.letter_reason)
        else:
            self._return(document, result.ready_at)

    def _return(self, document: Document, at: int) -> None:
        """Make a message ready, or park it until the instant `at`."""
        document.pop("w", None)
        document["s"] = states.READY
        wait_ms = at - self.state.now
        if wait_ms > 0:
            document["s"], document["w"] = states.PARKED, DatetimeMS(at)
            self._live_on(document, wait_ms + PARKED_MARGIN_MS, 0)

    def bury(self, document: Document, letter: DeadLetter, reason: str) -> None:
        """Move a message to the dead-letter queue; `Changing` gives it its position."""
        if letter.target is None:
            raise no_failed_list("MongoDB")
        document.pop("w", None)
        before = origin_of(document)
        origin = self._origin(document, reason, 0 if before is None else before.redriven)
        document["q"], document["s"] = key_of(letter.target), states.READY
        document["o"] = stored_origin(origin)
        if letter.ttl_ms is not None:
            document["t"], document["e"] = Int64(letter.ttl_ms), self._after(letter.ttl_ms)

    def move(self, document: Document, how: Move) -> Outcome:
        """Move a message that nobody holds; `Changing` gives it a position there."""
        if not self.is_live(document):
            return Outcome.NOT_FOUND
        is_parked = document["s"] == states.PARKED and document["w"] > self.state.date
        if document["s"] == states.CLAIMED or is_parked:
            return Outcome.HELD
        origin = origin_of(document) or self._origin(document, MOVED)
        document["o"] = stored_origin(origin.put_back())
        if how.reset:
            document["n"] = 0
            document.pop("f", None)
        document["q"], document["s"] = key_of(how.target), states.READY
        document["t"], document["e"] = Int64(how.ttl_ms), self._after(how.ttl_ms)
        document.pop("w", None)
        document.pop("d", None)
        if how.delay_ms:
            document["s"] = states.DELAYED
            document["d"] = document["w"] = self._after(how.delay_ms)
        return Outcome.DONE

    def _origin(self, document: Document, reason: str, redriven: int = 0) -> Origin:
        claim = document["n"], document.get("cid"), document.get("cu")
        return Origin(self.queue.name, self.state.now, *claim, reason, redriven)

    def _hold(self, document: Document, ttl_ms: int, grace_ms: int) -> None:
        """Let a lease end `ttl_ms` from now."""
        self._live_on(document, ttl_ms, grace_ms)
        document["w"] = self._after(ttl_ms)

    def _live_on(self, document: Document, ttl_ms: int, grace_ms: int) -> None:
        """Let a message that would expire within `ttl_ms` expire a grace after that instead."""
        if int(document["e"]) < self.state.now + ttl_ms:
            ttl_ms += grace_ms
            document["t"], document["e"] = Int64(ttl_ms), self._after(ttl_ms)

    def _after(self, milliseconds: int) -> DatetimeMS:
        return DatetimeMS(self.state.now + milliseconds)
