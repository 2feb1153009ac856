"""How a hand-out ends: what becomes of the message, and the attempt that its history keeps.

A message's history is an object of its own. It is made when the first attempt has ended, and read
only where details are asked for. It is written before the state that it belongs to: an attempt
whose state was never written is not shown, and the next end of that hand-out replaces it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from zaqar_lite.domain.attempts import Attempt, Ended, with_attempt
from zaqar_lite.domain.settlements import PARKED_MARGIN_MS, Ending, HandOut
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Objects


def ended(state: State, ending: Ending, now: int) -> tuple[State, Attempt]:
    """The state of a message whose hand-out has ended, and the attempt that this was.

    It is ready, or parked, or a dead letter to be moved where `move_reason` is set.
    """
    began, client_id = state.claimed_at or ending.at, state.claim_client or None
    result = ending.apply(HandOut(state.claim_count, began, client_id, state.failure_count))
    until = result.ready_at
    after = replace(
        state,
        failure_count=result.failures,
        ended=ending.outcome.value,
        claim_expires_at=until if until > now else 0,
        move_reason=result.letter_reason or "",
    )
    least = until + PARKED_MARGIN_MS
    if until > now and after.expires_at < least:
        after = replace(after, ttl_ms=least - now, expires_at=least)
    return after, result.attempt


def load_attempts(told: Sequence[Sequence[Any]]) -> list[Attempt]:
    """Read attempts that were written as JSON."""
    return [Attempt._make([*each[:3], Ended(each[3]), *each[4:]]) for each in told]


def dump_attempts(attempts: Iterable[Attempt]) -> list[list[Any]]:
    """Attempts as they are written as JSON."""
    return [[*a[:3], a.outcome.value, *a[4:]] for a in attempts]


class Histories:
    """The attempts of messages, each message's in one object beside it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def read(self, container: str, message: Listed) -> tuple[Attempt, ...]:
        """The ended hand-outs of a message, oldest first."""
        state = message.state
        if not state.has_attempts:
            return ()
        reply = await self._objects.get(container, layout.attempts_name(message.name))
        attempts = load_attempts(json.loads(reply.body) if reply.found else ())
        last = state.claim_count if state.ended else state.claim_count - 1
        return tuple(attempt for attempt in attempts if attempt.number <= last)

    async def read_all(self, container: str, message: Fetched) -> tuple[Attempt, ...]:
        """The ended hand-outs of a message with those from before it was last redriven."""
        before = tuple(load_attempts(message.content.attempts))
        attempts = await self.read(container, message.listed)
        return reduce(with_attempt, attempts, before)

    async def add(
        self, container: str, message: Listed, attempt: Attempt, ends: int, lease: Lease
    ) -> None:
        """Write the attempt that ends now into the history of a message that lives until `ends`."""
        attempts = with_attempt(await self.read(container, message), attempt)
        await self._put(container, message.name, attempts, ends, lease)

    async def copy(
        self, source: str, message: Listed, target: str, to: Listed, lease: Lease
    ) -> None:
        """Take a message's history with it to another queue."""
        attempts = await self.read(source, message)
        if attempts:
            await self._put(target, to.name, attempts, to.state.expires_at, lease)

    async def keep(self, container: str, message: Listed, ends: int, lease: Lease) -> None:
        """Let a message's history live until `ends`, as the message does."""
        if message.state.has_attempts:
            name, kind = layout.attempts_name(message.name), layout.content_type("attempts", e=ends)
            await self._objects.mark(container, name, kind, lease, ends=ends)

    async def remove(self, container: str, message: Listed, lease: Lease) -> None:
        """Remove the history of a message that is gone; else it ends when the message would."""
        if message.state.has_attempts:
            await self._objects.remove(container, layout.attempts_name(message.name), lease)

    async def _put(
        self, container: str, name: str, attempts: tuple[Attempt, ...], ends: int, lease: Lease
    ) -> None:
        kind = layout.content_type("attempts", e=ends)
        body = json.dumps(dump_attempts(attempts)).encode()
        await self._objects.put(container, layout.attempts_name(name), kind, body, lease, ends=ends)
