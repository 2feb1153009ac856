"""Dead letters on their way, and the sweep that finishes what a crash left undone.

A move crosses slots, so it takes three steps, each atomic and each safe to repeat:

1. A script takes a message that is a dead letter now out of its queue and puts it into the `outbox`
   there, under a sequence number. Now it is in neither queue; nobody can claim it.
2. `accept` lets the outbox's letters into the target, which remembers the last number that came
   from each source, so that a repeat changes nothing, however late it is.
3. `outbox_ack` removes from the outbox what has arrived.

Companions of posts (`post.lua`) leave through the same outbox; `bring` lets them in.

A claim, pop or move that caused step 1 does 2 and 3 before it answers, unless the target's node is
away or slow; a settlement begins them and answers. The queue was registered with the sweep before
step 1 (the script insists), so after a crash any process's sweep drains the outbox. One
registration serves for five seconds: while the `armed` of the queue's state is to come, each visit
of the sweep is followed by another. Where all keys are on one server, step 1 registers the queue
too, so that a sweep looks after two seconds; a cluster's other node can't be reached from the
script, so there a letter that a crash left behind may wait for the rest of those seconds.

The script of a settlement answers the letters that it put into an empty outbox, so that nobody need
read them. Letters of a source must arrive in the order of their numbers: where others are before
them, the outbox is read from its beginning.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from zaqar_lite.domain.attempts import Backoff
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable, Unsupported
from zaqar_lite.domain.models import Message, QueueRef, Retries, RetriesOf, Swept
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.redis.codec import pack_letter
from zaqar_lite.storage.redis.keys import EVERYWHERE, Keys, keys_of, ref_of, tag_of
from zaqar_lite.storage.redis.limiter import PART_SIZE, FairLimiter
from zaqar_lite.storage.redis.router import Router
from zaqar_lite.storage.redis.scripts import load

logger = logging.getLogger(__name__)
_QUEUES_PER_STEP = 100
_ROUNDS = 100
_COMPANION = b"\xff\xff"
"""In the place of a letter's length: it is a companion of a post."""
ARMED_MS = 5_000
"""How long the sweep goes on visiting a queue that was registered when a script asked for it."""
_MOST_ADOPTED = 100_000
LATER_MS = 5_000
"""How long the sweep leaves alone what it cannot tidy up now: its node does not answer."""


class Sweeper:
    """Drain outboxes, and visit the queues in which something is due."""

    def __init__(self, router: Router, clock: Clock) -> None:
        self._router = router
        self._clock = clock
        self._limiter = FairLimiter()
        self._finishing: dict[str, asyncio.Task[None]] = {}

    async def finish(self, keys: Keys) -> None:
        """Store the parts of a post that is committed to a queue; one task of this process does.

        Those who wait for it go on in the order in which they came, so no crowd of long posts
        keeps a reader out.
        """
        task = self._finishing.get(keys.tag)
        if task is None:
            task = self._finishing[keys.tag] = self._router.begin(self._publish(keys))
            task.add_done_callback(lambda _: self._finishing.pop(keys.tag, None))
        await asyncio.shield(task)

    async def _publish(self, keys: Keys) -> None:
        status = b"more"
        while status == b"more":
            async with self._limiter.slot(ref_of(keys.tag).project, PART_SIZE):
                (status,) = await self._router.run(
                    load("publish"), keys, self._clock.offset_ms, repeatable=True
                )

    async def _run(
        self, script: str, keys: Keys, *words: str | bytes | int, repeatable: bool = True
    ) -> Any:  # noqa: ANN401 - a reply is what the script made it
        """Run a script on a queue when no post in parts is under way there."""
        while True:
            reply = await self._router.run(
                load(script), keys, self._clock.offset_ms, *words, repeatable=repeatable
            )
            if reply[0] != b"busy":
                return reply
            await self.finish(keys)

    async def register(self, keys: Keys, instant: int) -> None:
        """Let the sweep visit a queue at an instant (ms)."""
        await self._router.run(load("register"), EVERYWHERE, keys.tag, instant, repeatable=True)

    async def drain(self, keys: Keys, known: Sequence[bytes] = ()) -> tuple[int, set[QueueRef]]:
        """Bring what is in a queue's outbox to its targets; answer the dead letters and theirs.

        `known` are the first letters that are there, if the caller knows.
        """
        drained, targets = 0, set[QueueRef]()
        while True:
            letters = known or await self._router.run(load("letters"), keys, repeatable=True)
            known = ()
            if not letters:
                return drained, targets
            for target, dead in (await self.bring(keys, letters)).items():
                drained += dead
                targets.add(ref_of(target.tag))
            if not await self.acknowledge(keys, letters):
                return drained, targets

    async def bring(self, keys: Keys, letters: Sequence[bytes]) -> dict[Keys, int]:
        """Bring the first letters of a queue's outbox to their targets; answer how many to each."""
        brought: dict[Keys, int] = {}
        for tag, group in groupby(letters, _target_of):
            target = keys_of(ref_of(tag.decode()))
            if dead := await self._deliver(keys, target, list(group)):
                brought[target] = brought.get(target, 0) + dead
        return brought

    async def acknowledge(self, keys: Keys, letters: Sequence[bytes]) -> int:
        """Remove letters that have arrived from a queue's outbox; answer how many are left."""
        _, left = await self._router.run(
            load("outbox_ack"), keys, letters[-1][:8], len(letters), repeatable=True
        )
        return int(left)

    async def _deliver(self, source: Keys, target: Keys, letters: Sequence[bytes]) -> int:
        """Let letters and companions into their target; answer how many letters they were."""
        start = 10 + len(target.tag)
        companions = [one for one in letters if one[start : start + 2] == _COMPANION]
        dead = [one for one in letters if one[start : start + 2] != _COMPANION]
        for script, some, skipped in (("accept", dead, start), ("bring", companions, start + 2)):
            if not some:
                continue
            _, instant = await self._run(
                script,
                target,
                source.tag,
                *(letter[:8] + letter[skipped:] for letter in some),
            )
            if instant:
                await self.register(target, instant)
        return len(dead)

    async def adopt(
        self, target: Keys, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Let messages of another store into a queue, as letters from a queue that is none."""
        now = self._clock.now_ms()
        _, instant = await self._run(
            "accept",
            target,
            f"adopted:{source}",
            *(
                (number * _MOST_ADOPTED + place).to_bytes(8, "big") + pack_letter(message, now)
                for place, message in enumerate(messages)
            ),
        )
        if instant:
            await self.register(target, instant)

    async def sweep(self, limit: int, retries_of: RetriesOf) -> Swept:
        """Visit the queues that are due until about `limit` entries were tidied up.

        A queue that has more to tidy up than one step does is due again, so it is visited again.
        """
        total = Swept()
        for _ in range(_ROUNDS):
            now, visits = await self._router.run(
                load("visits"),
                EVERYWHERE,
                self._clock.offset_ms,
                min(limit, _QUEUES_PER_STEP),
                repeatable=True,
            )
            for tag, score in zip(visits[::2], visits[1::2], strict=True):
                if total.total >= limit:
                    return total
                swept, following = await self._visit(tag, limit - total.total, retries_of)
                if following is None:
                    following = now + LATER_MS
                await self._router.run(load("reschedule"), EVERYWHERE, tag, score, following)
                total = total.plus(swept)
            if not visits:
                break
        return total

    async def census(self) -> AsyncIterator[QueueRef]:
        """Name the queues that will be visited: all that hold something."""
        cursor: bytes | int = 0
        while True:
            cursor, found = await self._router.command(
                EVERYWHERE.slot, "ZSCAN", EVERYWHERE.key("visits"), cursor, "COUNT", MAX_EXAMINED
            )
            for tag in found[::2]:
                yield ref_of(tag.decode())
            if int(cursor) == 0:
                return

    async def _visit(
        self, tag: bytes, budget: int, retries_of: RetriesOf
    ) -> tuple[Swept, int | None]:
        """Tidy up one queue; answer when it must be visited next, None where it cannot be now."""
        keys = Keys(tag.decode())
        queue = ref_of(keys.tag)
        try:
            retries = await retries_of(queue)
            swept, letters, following = await self._sweep_queue(keys, queue, budget, retries)
        except (Unavailable, Unsupported) as exc:
            logger.warning("the sweep passes a queue over: %s", exc)
            return Swept(), None
        if letters:
            try:
                moved, targets = await self.drain(keys)
                swept = swept._replace(moved=moved, letters_in=frozenset(targets))
            except Unavailable as exc:
                logger.warning("dead letters go on waiting for their queue: %s", exc)
        return swept, following

    async def _sweep_queue(
        self, keys: Keys, queue: QueueRef, budget: int, retries: Retries
    ) -> tuple[Swept, int, int]:
        """Run the sweep's script; again, after the queue was registered, where it has letters."""
        total = Swept()
        armed_until = 0
        for _ in range(2):
            (
                status,
                expired,
                forgotten,
                promoted,
                lapsed,
                letters,
                following,
                now,
            ) = await self._run(
                "sweep",
                keys,
                *("", "", budget),
                *policy_words(queue, retries, armed_until),
                repeatable=False,
            )
            total = total.plus(Swept(expired, promoted, lapsed, 0, forgotten))
            if status != b"arm":
                break
            await self.register(keys, now)
            armed_until = now + ARMED_MS
        return total, letters, following


@lru_cache(maxsize=1_000)
def _policy(queue: QueueRef, retries: Retries) -> tuple[str | int | bytes, ...]:
    delays, jitter = _pack_backoff(retries.backoff)
    letter = retries.dead_letter
    if letter is None:
        return "", "", "", "", "", delays, jitter
    if letter.target is None:
        raise Unsupported("The Redis store keeps no failed messages; the embedded one does.")
    ttl = "" if letter.ttl_ms is None else letter.ttl_ms
    limits = letter.max_claims, letter.max_failures
    return *limits, tag_of(letter.target), ttl, queue.name, delays, jitter


def policy_words(
    queue: QueueRef, retries: Retries, armed_until: int = 0
) -> tuple[str | int | bytes, ...]:
    """What becomes of messages that fail, as scripts take it (`parts/policy.lua`).

    Until `armed_until` the sweep is known to come to the queue, so that letters may leave it.

    Raises:
        Unsupported: dead letters of the queue would go to a list of its own.
    """
    return armed_until or "", *_policy(queue, retries)


def _target_of(letter: bytes) -> bytes:
    return letter[10 : 10 + int.from_bytes(letter[8:10], "big")]


@lru_cache(maxsize=1_000)
def _pack_backoff(backoff: Backoff | None) -> tuple[bytes, str]:
    """Write a back-off as scripts take it: its delays, and the jitter where there is some."""
    if backoff is None:
        return b"", ""
    delays = b"".join(delay.to_bytes(6, "big") for delay in backoff.delays_ms)
    return delays, str(backoff.jitter) if backoff.jitter else ""
