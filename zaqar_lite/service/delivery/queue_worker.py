"""An internal queue's worker: it claims messages, acts on each, and deletes them when done."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from zaqar_lite.domain.errors import TooMany, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import ClaimRequest, DelayMode, Message, QueueRef
from zaqar_lite.service.background import cancelled
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
class QueueWorker:
    """Claim messages while there is room, and `act` on each in a task of its own."""

    queue: QueueRef
    act: Callable[[Message], Awaitable[None]]
    messages: MessageStore
    long_polling: LongPolling

    def __post_init__(self) -> None:
        self._done: list[str] = []
        self._has_done = asyncio.Event()

    async def run(self) -> None:
        """Work for ever; what is under way at a cancellation comes again when its lease ends."""
        under_way: set[asyncio.Task[None]] = set()
        deleting = asyncio.create_task(self._delete())
        try:
            while True:
                room = _MOST_AT_ONCE - len(under_way)
                if room <= 0:
                    # Those that end leave the set themselves, so it stays the same set.
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for message in await self._claim(min(room, _BATCH)):
                    task = asyncio.create_task(self._work(message))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
        finally:
            await cancelled(deleting, *under_way)

    async def delete_done(self) -> None:
        """Delete what is done.

        Raises:
            Unavailable: it is deleted later.
        """
        done, self._done = self._done, []
        if not done:
            return
        try:
            # Even if another process holds them by now: they were delivered.
            await self.messages.delete(self.queue, done, claim_ids=None)
        except BaseException:
            self._done = [*done, *self._done]
            self._has_done.set()
            raise

    async def _claim(self, limit: int) -> Sequence[Message]:
        async def ask() -> Sequence[Message] | None:
            request = ClaimRequest(limit, None, DelayMode.HONOUR, LEASE_MS, client_id=CLIENT_ID)
            return (await self.messages.claim(self.queue, request)).messages or None

        found: Sequence[Message] | None = None
        try:
            try:
                never = asyncio.get_running_loop().create_future()
                found = await self.long_polling.until_found(self.queue, _WAIT, ask, gone=never)
            except TooMany:  # so many clients wait that this worker may not
                await asyncio.sleep(_PAUSE)
                found = await ask()
        except Unavailable as exc:
            logger.warning("deliveries are put off: %s", exc)
            await asyncio.sleep(_PAUSE)
        except Exception:
            # A bug must not end the deliveries for the life of the process.
            logger.exception("deliveries failed")
            await asyncio.sleep(_PAUSE)
        if found is None and self.long_polling.is_closed:
            await asyncio.sleep(_PAUSE)
        return found or ()

    async def _work(self, message: Message) -> None:
        try:
            await self.act(message)
        except ZaqarLiteError as exc:
            logger.warning("a delivery comes again when its lease ends: %s", exc)
        except Exception:
            logger.exception("a delivery failed; it comes again when its lease ends")
        else:
            self._done.append(message.id)
            self._has_done.set()

    async def _delete(self) -> None:
        """Delete what is done, many at a time."""
        while True:
            await self._has_done.wait()
            self._has_done.clear()
            await asyncio.sleep(_GATHER)
            try:
                await self.delete_done()
            except Unavailable as exc:
                logger.warning("what was delivered is deleted later: %s", exc)
                await asyncio.sleep(_PAUSE)
            except Exception:
                # If this task ended, all that is delivered from now on would come again.
                logger.exception("what was delivered is deleted later")
                await asyncio.sleep(_PAUSE)
