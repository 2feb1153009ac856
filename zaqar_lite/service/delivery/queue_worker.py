"""An internal queue's worker: it claims messages, acts on each, and deletes them when done."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from zaqar_lite.domain.errors import TooMany, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import ClaimRequest, DelayMode, Message, QueueRef
from zaqar_lite.service.background import Background, BackgroundWorker, cancelled
from zaqar_lite.service.delivery.outbox import CLIENT_ID
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.base import MessageStore

logger = logging.getLogger(__name__)
LEASE_MS = 60_000
_BATCH = 100
_MOST_AT_ONCE = 400
"""Messages of an internal queue that one process works on."""
_WAIT = 20.0
_PAUSE = 1.0
_GATHER = 0.01
"""Seconds for which finished messages are gathered, to be deleted in one step."""


@dataclass(eq=False, repr=False)
class QueueWorker(BackgroundWorker):
    """Claim messages while there is room, and `act` on each in a task of its own.

    What is under way at a stop comes again when its lease ends.
    """

    queue: QueueRef
    act: Callable[[Message], Awaitable[None]]
    messages: MessageStore
    long_polling: LongPolling

    def __post_init__(self) -> None:
        self._work = Background("deliveries", self._begin_some, rest=_PAUSE)
        self._deleting = Background("deleting deliveries", self._delete_done, rest=_PAUSE)
        self._under_way: set[asyncio.Task[None]] = set()
        self._done: list[str] = []

    def start(self) -> None:
        """Begin, in tasks of the running event loop."""
        super().start()
        self._deleting.start()

    async def stop(self) -> None:
        """End; idempotent."""
        await super().stop()
        await self._deleting.stop()
        await cancelled(*self._under_way)
        try:
            await self._delete_done()
        except Unavailable as exc:
            logger.warning("some deliveries come again: %s", exc)

    async def _begin_some(self) -> float:
        """Begin to act on what the queue has, or wait for it; answer the seconds to rest."""
        room = _MOST_AT_ONCE - len(self._under_way)
        if room <= 0:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            return 0.0
        found, rest = await self._claim(min(room, _BATCH))
        for message in found:
            task = asyncio.create_task(self._act(message))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return rest

    async def _claim(self, limit: int) -> tuple[Sequence[Message], float]:
        async def ask() -> Sequence[Message] | None:
            request = ClaimRequest(
                limit, delay_mode=DelayMode.HONOUR, ttl_ms=LEASE_MS, client_id=CLIENT_ID
            )
            return (await self.messages.claim(self.queue, request)).messages or None

        try:
            never = asyncio.get_running_loop().create_future()
            found = await self.long_polling.until_found(self.queue, _WAIT, ask, gone=never)
        except TooMany:  # so many clients wait that this worker may not
            return await ask() or (), _PAUSE
        return found or (), _PAUSE if found is None and self.long_polling.is_closed else 0.0

    async def _act(self, message: Message) -> None:
        try:
            await self.act(message)
        except ZaqarLiteError as exc:
            logger.warning("a delivery comes again when its lease ends: %s", exc)
        except Exception:
            logger.exception("a delivery failed; it comes again when its lease ends")
        else:
            self._done.append(message.id)
            self._deleting.wake()

    async def _delete_done(self) -> float:
        """Delete what is done, many at a time, even if another process holds it by now."""
        await asyncio.sleep(_GATHER)
        done, self._done = self._done, []
        if done:
            try:
                await self.messages.delete(self.queue, done, claim_ids=None)
            except BaseException:
                self._done = [*done, *self._done]
                raise
        return 0.0 if self._done else _WAIT
