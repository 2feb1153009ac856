"""The rules for one message that is settled, lapses or fails.

They change a document as it was read, at the instant it was read. `GuardedUpdates` then stores the
change if the message is still as it was.
"""

from random import random
from typing import NamedTuple

from bson import Int64
from bson.datetime_ms import DatetimeMS

from zaqar_lite.domain.attempts import (
    LAPSED,
    MAX_CLAIMS,
    MOVED,
    REJECTED,
    Attempt,
    Ended,
    with_attempt,
)
from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.models import MAX_REDRIVEN, DeadLetter, Move, QueueRef, Retries
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.storage.mongodb.documents import attempts_of, stored_attempt
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.queues import (
    CLAIMED,
    DELAYED,
    GONE,
    LIVE_STATES,
    PARKED,
    READY,
    QueueState,
    key_of,
)

PARKED_MARGIN_MS = 60_000
"""How much longer than its wait a parked message lives at least."""


class Transitions(NamedTuple):
    """Decide on messages of one queue by its state at `state.now`."""

    ref: QueueRef
    state: QueueState
    retries: Retries

    def settle(self, document: Document, claim_id: str, settlement: Settlement) -> Outcome:
        """Do what a settlement says; the seam has the rule."""
        if not self.is_live(document):
            return Outcome.NOT_FOUND
        if not self.is_held(document) or document["cid"] != claim_id:
            return self._not_held(document, claim_id, settlement)
        match settlement.act:
            case Act.ACK:
                document["s"], document["e"] = GONE, self.state.date
            case Act.EXTEND:
                self._live_on(document, settlement.ttl_ms, settlement.grace_ms)
                document["w"] = self._after(settlement.ttl_ms)
            case Act.DEAD:
                letter = self.retries.dead_letter
                if letter is None:
                    return Outcome.NO_TARGET
                reason = settlement.reason or REJECTED
                self._end(document, Ended.DEAD, reason=reason, detail=settlement.detail)
                self._move(document, letter, reason)
            case Act.RELEASE if settlement.failed:
                self._fail(document, Ended.FAILED, self.state.now, settlement)
            case Act.RELEASE:
                self.release(document, settlement)
        return Outcome.DONE

    def release(self, document: Document, settlement: Settlement) -> None:
        """Give a held message back, at once or after a delay: no failure."""
        delay_ms = settlement.delay_ms or 0
        self._end(
            document,
            Ended.RELEASED,
            delay_ms=delay_ms,
            reason=settlement.reason,
            detail=settlement.detail,
        )
        self._return(document, self.state.now + delay_ms)

    def lapse(self, document: Document) -> None:
        """End a lease whose time is over: a failure, of what has not expired."""
        if self.is_live(document):
            over = Settlement(document["_id"], Act.RELEASE, reason=LAPSED)
            self._fail(document, Ended.LAPSED, int(document["w"]), over)
        else:
            self._return(document, 0)

    def exhaust(self, document: Document) -> None:
        """Move a message to the dead letters that was claimed as often as it may."""
        if self.retries.dead_letter is not None:
            self._move(document, self.retries.dead_letter, MAX_CLAIMS)

    def is_live(self, document: Document) -> bool:
        """Whether the message exists in the queue."""
        return (
            document.get("q", self.state.key) == self.state.key
            and document["s"] in LIVE_STATES
            and document["k"] > self.state.birth
            and int(document["e"]) > self.state.now
        )

    def is_held(self, document: Document) -> bool:
        """Whether a live claim holds it."""
        return document["s"] == CLAIMED and int(document["w"]) > self.state.now

    def _not_held(self, document: Document, claim_id: str, settlement: Settlement) -> Outcome:
        """The outcome of a settlement by a claim that does not hold the message."""
        if self.is_held(document):
            return Outcome.HELD
        was_released = document.get("l") in (Ended.RELEASED.value, Ended.FAILED.value)
        if was_released and document["cid"] == claim_id and settlement.act is Act.RELEASE:
            return Outcome.DONE
        return Outcome.LAPSED

    def _fail(self, document: Document, outcome: Ended, at: int, settlement: Settlement) -> None:
        """Count a failure: a dead letter, or a later try."""
        document["f"] = failures = document.get("f", 0) + 1
        letter, backoff = self.retries
        wait_ms = settlement.delay_ms
        if wait_ms is None:
            wait_ms = 0 if backoff is None else backoff.delay_ms(failures, random())  # noqa: S311 - jitter
        spent = letter and letter.spent(document["n"], failures)
        self._end(
            document,
            outcome,
            at,
            delay_ms=0 if spent else wait_ms,
            reason=settlement.reason,
            detail=settlement.detail,
        )
        if letter and spent:
            self._move(document, letter, spent)
        else:
            self._return(document, at + wait_ms)

    def _end(
        self,
        document: Document,
        outcome: Ended,
        at: int | None = None,
        *,
        delay_ms: int = 0,
        reason: str | None,
        detail: str | None,
    ) -> None:
        """Add the hand-out that ends now to the history."""
        attempt = Attempt(
            document["n"],
            claimed_at(document),
            self.state.now if at is None else at,
            outcome,
            delay_ms,
            reason,
            detail,
            document.get("cu"),
        )
        attempts = with_attempt(attempts_of(document), attempt)
        document["a"] = [stored_attempt(each) for each in attempts]
        document["l"] = outcome.value

    def _return(self, document: Document, at: int) -> None:
        """Make a message ready, or park it until the instant `at`."""
        document.pop("w", None)
        document["s"] = READY
        wait_ms = at - self.state.now
        if wait_ms > 0:
            document["s"], document["w"] = PARKED, DatetimeMS(at)
            self._live_on(document, wait_ms + PARKED_MARGIN_MS, 0)

    def _move(self, document: Document, letter: DeadLetter, reason: str) -> None:
        """Move a message to the dead-letter queue; `GuardedUpdates` gives it its position."""
        if letter.target is None:
            raise Unsupported("The mongodb store keeps no failed messages; the embedded one does.")
        document.pop("w", None)
        redriven = document.get("o", {}).get("rd", 0)
        document["q"], document["s"] = key_of(letter.target), READY
        document["o"] = {**self._origin(document, reason), "rd": redriven}
        if letter.ttl_ms is not None:
            document["t"], document["e"] = Int64(letter.ttl_ms), self._after(letter.ttl_ms)

    def move(self, document: Document, how: Move) -> Outcome:
        """Move a message that nobody holds; `GuardedUpdates` gives it a position there."""
        if not self.is_live(document):
            return Outcome.NOT_FOUND
        if document["s"] in (CLAIMED, PARKED):
            return Outcome.HELD
        origin = document.get("o") or self._origin(document, MOVED)
        document["o"] = {**origin, "rd": min(origin.get("rd", 0) + 1, MAX_REDRIVEN)}
        if how.reset:
            document["n"] = 0
            document.pop("f", None)
        document["q"], document["s"] = key_of(how.target), READY
        document["t"], document["e"] = Int64(how.ttl_ms), self._after(how.ttl_ms)
        document.pop("w", None)
        document.pop("d", None)
        if how.delay_ms:
            document["s"] = DELAYED
            document["d"] = document["w"] = self._after(how.delay_ms)
        return Outcome.DONE

    def _origin(self, document: Document, reason: str) -> Document:
        return {
            "source": self.ref.name,
            "at": self.state.date,
            "n": document["n"],
            "cid": document.get("cid"),
            "cu": document.get("cu"),
            "r": reason,
        }

    def _live_on(self, document: Document, ttl_ms: int, grace_ms: int) -> None:
        """Let a message that would expire within `ttl_ms` expire a grace after that instead."""
        if int(document["e"]) < self.state.now + ttl_ms:
            ttl_ms += grace_ms
            document["t"], document["e"] = Int64(ttl_ms), self._after(ttl_ms)

    def _after(self, milliseconds: int) -> DatetimeMS:
        return DatetimeMS(self.state.now + milliseconds)


def claimed_at(document: Document) -> int:
    """When a message was handed out last; earlier versions only told when its lease ends."""
    if "ca" in document:
        return int(document["ca"])
    return int(document["w"]) - int(document.get("ct", 0))
