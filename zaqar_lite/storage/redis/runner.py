"""Run the script of an operation on a queue, and act on its reply."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from zaqar_lite.domain.attempts import Backoff
from zaqar_lite.domain.models import Message, QueueRef, RetryPolicy
from zaqar_lite.domain.refusals import no_failed_list, queue_changed
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.redis.codec import large_bodies, read_messages
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.keys import EVERYWHERE, keys_of, tag_of
from zaqar_lite.storage.redis.limiter import FEW_BYTES

ARMED_MS = 5_000
"""How long the sweep visits a queue that was registered because a script asked for it."""
_MOST_ARMED = 10_000
_LARGE_REPLY = 300
"""Items of a reply that are read in a turn of their own: about 100 messages, 0.5 ms."""
_BODIES = 524_288
"""Bytes of large bodies that one command reads."""


class Runner:
    """Run scripts on queues, and register what they leave for the sweep."""

    def __init__(self, connection: Connection) -> None:
        self.router = connection.router
        self.follow_ups = connection.follow_ups
        self._armed: dict[QueueRef, int] = {}

    async def run(
        self,
        queue: QueueRef,
        operation: str,
        *words: str | bytes | int,
        repeatable: bool = False,
        is_long: bool = False,
        has_policy: bool = False,
        surely: bool = False,
    ) -> Any:  # noqa: ANN401 - a reply is what the script made it
        """Run a script on a queue, and repeat it while it only caught up with what was due.

        A long one waits for its turn. If a post in parts is in progress, that is completed first.
        If dead letters or outbox messages are about to leave, and the script can't register the
        queue for the sweep itself, that is done before. A script that `has_policy` is told behind
        its third word until when the sweep is sure to come.

        Where the script can't register the queue for what it has left to the sweep, that is done
        too, in the background if it takes long; with `surely` its failure is raised.

        Raises:
            QueueChanged: the script found the record at another version.
        """
        keys, long_for = keys_of(queue), queue.project if is_long else None
        while True:
            given = words
            if has_policy:
                given = *words[:3], self._armed.get(queue, ""), *words[3:]
            reply = await self.router.run(
                operation, keys, *given, repeatable=repeatable, long_for=long_for
            )
            status, instant = reply[0], reply.pop()
            if instant:
                work = self._register(queue, instant)
                await (work if surely else self.follow_ups.run(work))
            if status == b"busy":
                await self.complete_post(queue)
            elif status == b"arm":
                await self._arm(queue, reply[1])
            elif status == b"changed":
                raise queue_changed(queue)
            elif status != b"again" or len(reply) != 3:
                return reply

    async def read(
        self,
        queue: QueueRef,
        reply: Sequence[Any],
        start: int,
        now: int,
        *,
        details: bool = False,
        show_delay: bool = True,
    ) -> list[Message]:
        """Make the messages of a reply, and read their large bodies.

        What was deleted meanwhile is left out.
        """
        bodies: dict[bytes, bytes | None] = {}
        some: list[bytes] = []
        size = 0
        sizes, keys = large_bodies(reply, start, details=details), keys_of(queue)
        for number, (position, one) in enumerate(sizes.items(), 1):
            some.append(position)
            size += one
            if size >= _BODIES or number == len(sizes):
                long_for = queue.project if size > FEW_BYTES else None
                found = await self.router.command(
                    keys.slot, "HMGET", keys.key("bodies"), *some, long_for=long_for
                )
                bodies.update(zip(some, found, strict=True))
                some, size = [], 0
        if len(reply) > _LARGE_REPLY:
            await next_turn()
        return read_messages(reply, start, now, bodies, details=details, show_delay=show_delay)

    async def complete_post(self, queue: QueueRef) -> None:
        """Store the parts of a committed post, in one task of this process.

        Waiting calls continue in the order in which they came, so many long posts can't keep a
        reader out. On failure the next caller goes on.
        """
        await self.router.once(queue, partial(self._publish, queue))

    async def _publish(self, queue: QueueRef) -> None:
        status = b"more"
        while status == b"more":
            (status,) = await self.run(queue, "publish", repeatable=True, is_long=True)

    async def _register(self, queue: QueueRef, instant: int) -> None:
        """Register a queue for the sweep at an instant (ms)."""
        tag = keys_of(queue).tag
        await self.router.run("register", EVERYWHERE, tag, instant, repeatable=True)

    async def _arm(self, queue: QueueRef, now: int) -> None:
        """Register a queue whose script asked for it at `now`, before letters leave it."""
        await self._register(queue, now)
        if len(self._armed) >= _MOST_ARMED:
            self._armed.clear()
        self._armed[queue] = now + ARMED_MS


@lru_cache(maxsize=1_000)
def policy_words(queue: QueueRef, retries: RetryPolicy) -> tuple[str | int | bytes, ...]:
    """Return the policy of a queue as arguments.

    Raises:
        Unsupported: the queue is to keep its dead letters itself.
    """
    delays, jitter = _pack_backoff(retries.backoff)
    letter = retries.dead_letter
    if letter is None:
        return "", "", "", "", "", delays, jitter
    if letter.target is None:
        raise no_failed_list("Redis")
    ttl = "" if letter.ttl_ms is None else letter.ttl_ms
    limits = letter.max_claims, letter.max_failures
    return *limits, tag_of(letter.target), ttl, queue.name, delays, jitter


def _pack_backoff(backoff: Backoff | None) -> tuple[bytes, str]:
    """Return a back-off as bytes: its delays, and its jitter if it has one."""
    if backoff is None:
        return b"", ""
    delays = b"".join(delay.to_bytes(6, "big") for delay in backoff.delays_ms)
    return delays, str(backoff.jitter) if backoff.jitter else ""
