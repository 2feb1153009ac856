"""What became of a subscription's deliveries: its last attempts, in one record beside it.

Attempts are gathered in memory and written once a second for each subscription that had any, so a
busy one costs one write a second; a server that is killed loses the last second of its log, and
nothing else.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.records import Kind
from zaqar_lite.storage.management import ManagementStore

KIND = "deliveries"
MAX_ATTEMPTS = 20
MAX_ANSWER = 1_024
_LATEST_MS = 86_400_000
"""The record of a log lives so long at least, even if its subscription ends sooner."""

Attempt = Mapping[str, Any]


@dataclass(slots=True)
class _Log:
    """The last attempts, since when all have failed, and for how long to keep that."""

    attempts: Sequence[Attempt] = ()
    failing_since: int | None = None
    keep_ms: int = _LATEST_MS

    def encode(self) -> bytes:
        value = {"attempts": self.attempts, "failing_since": self.failing_since}
        return json.dumps(value, ensure_ascii=False).encode()


@dataclass(eq=False)
class _Pending:
    """What is to be written of one subscription."""

    subscription: Subscription
    attempts: list[Attempt] = field(default_factory=list)
    succeeded_at: int = 0
    failing_since: int | None = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False, repr=False)
class AttemptLog:
    """Keep the last attempts of each subscription, and since when it has only failed."""

    management: ManagementStore
    clock: Clock

    def __post_init__(self) -> None:
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._kind = Kind(
            self.management,
            KIND,
            "The log",
            encode=_Log.encode,
            decode=lambda record: _Log(**json.loads(record.value)),
            lives=lambda log: log.keep_ms,
        )

    def add(self, subscription: Subscription, attempt: Attempt, *, succeeded: bool) -> None:
        """Note an attempt that has just ended."""
        pending = self._pending.setdefault(_key(subscription), _Pending(subscription))
        pending.attempts = [*pending.attempts, attempt][-MAX_ATTEMPTS:]
        now = self.clock.now_ms()
        if succeeded:
            pending.succeeded_at, pending.failing_since = now, None
        elif pending.failing_since is None:
            pending.failing_since = now

    async def read(self, queue: QueueRef, subscription_id: str) -> Sequence[Attempt]:
        """The last attempts of a subscription, the newest first."""
        key = queue.project, f"{queue.name}/{subscription_id}"
        await self._write(key)
        log = await self._kind.find(*key)
        return () if log is None else log.attempts[::-1]

    async def failing_since(self, subscription: Subscription) -> int | None:
        """Since when all attempts have failed; None when one succeeded, or none is written yet."""
        pending = self._pending.get(_key(subscription))
        if pending is not None and pending.succeeded_at:
            return pending.failing_since
        log = await self._kind.find(*_key(subscription))
        return None if log is None else log.failing_since

    async def forget(self, subscription: Subscription) -> None:
        """Remove the log of a subscription that has ended, or begins anew."""
        self._pending.pop(_key(subscription), None)
        await self._kind.delete(*_key(subscription))

    async def flush(self) -> None:
        """Write what is pending."""
        for key in tuple(self._pending):
            await self._write(key)

    async def _write(self, key: tuple[str, str]) -> None:
        """Write what is pending of a subscription; what ends meanwhile stays pending."""
        pending = self._pending.get(key)
        if pending is None:
            return
        async with pending.writing:
            attempts = tuple(pending.attempts)

            async def merge(log: _Log | None) -> _Log:
                log = log or _Log()
                merged = sorted((*log.attempts, *attempts), key=lambda one: str(one["at"]))
                since = log.failing_since
                if pending.succeeded_at or since is None:
                    since = pending.failing_since
                left = pending.subscription.expires_at - self.clock.now_ms()
                return _Log(merged[-MAX_ATTEMPTS:], since, max(left, _LATEST_MS))

            if attempts:
                await self._kind.write(*key, merge)
                written = {id(one) for one in attempts}
                pending.attempts = [one for one in pending.attempts if id(one) not in written]
            if not pending.attempts and self._pending.get(key) is pending:
                del self._pending[key]


def _key(subscription: Subscription) -> tuple[str, str]:
    return subscription.queue.project, subscription.name
