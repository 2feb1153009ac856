"""What became of a subscription's deliveries: its last attempts, in one record beside it.

Attempts are gathered in memory and written once a second for each subscription that had any, so a
busy one costs one write a second; a server that is killed loses the last second of its log, and
nothing else.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.storage.management import ManagementStore

KIND = "deliveries"
MAX_ATTEMPTS = 20
MAX_ANSWER = 1_024
_PAUSE = 1.0
_MAX_ROUNDS = 10
_LATEST_MS = 86_400_000
"""The record of a log lives so long at least, even if its subscription ends sooner."""

Attempt = Mapping[str, Any]


class _Pending:
    """What is to be written of one subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.attempts: list[Attempt] = []
        self.succeeded_at = 0
        self.failing_since: int | None = None
        self.writing = asyncio.Lock()


class AttemptLog:
    """Keep the last attempts of each subscription, and since when it has only failed."""

    def __init__(self, management: ManagementStore, clock: Clock) -> None:
        self._management = management
        self._clock = clock
        self._pending: dict[str, _Pending] = {}

    def add(self, subscription: Subscription, attempt: Attempt, *, succeeded: bool) -> None:
        """Note an attempt that has just ended."""
        pending = self._pending.setdefault(
            f"{subscription.queue.project}/{subscription.name}", _Pending(subscription)
        )
        pending.attempts = [*pending.attempts, attempt][-MAX_ATTEMPTS:]
        now = self._clock.now_ms()
        if succeeded:
            pending.succeeded_at, pending.failing_since = now, None
        elif pending.failing_since is None:
            pending.failing_since = now

    async def read(self, queue: QueueRef, subscription_id: str) -> Sequence[Attempt]:
        """The last attempts of a subscription, the newest first."""
        name = f"{queue.name}/{subscription_id}"
        await self._write(f"{queue.project}/{name}")
        record = await self._management.get_record(KIND, queue.project, name)
        attempts: list[Attempt] = json.loads(record.value)["attempts"] if record else []
        return attempts[::-1]

    async def failing_since(self, subscription: Subscription) -> int | None:
        """Since when all attempts have failed; None when one succeeded, or none is written yet."""
        pending = self._pending.get(f"{subscription.queue.project}/{subscription.name}")
        if pending is not None and pending.succeeded_at:
            return pending.failing_since
        record = await self._management.get_record(
            KIND, subscription.queue.project, subscription.name
        )
        return None if record is None else json.loads(record.value)["failing_since"]

    async def forget(self, subscription: Subscription) -> None:
        """Remove the log of a subscription that has ended, or begins anew."""
        self._pending.pop(f"{subscription.queue.project}/{subscription.name}", None)
        await self._management.delete_record(KIND, subscription.queue.project, subscription.name)

    async def write(self) -> float:
        """Write what is pending; answer when to write again, in seconds."""
        await self.flush()
        return _PAUSE

    async def flush(self) -> None:
        """Write what is pending."""
        for key in tuple(self._pending):
            await self._write(key)

    async def _write(self, key: str) -> None:
        """Write what is pending of a subscription; what ends meanwhile stays pending."""
        pending = self._pending.get(key)
        if pending is None:
            return
        async with pending.writing:
            if pending.attempts:
                await self._merge(pending)
            if not pending.attempts and self._pending.get(key) is pending:
                del self._pending[key]

    async def _merge(self, pending: _Pending) -> None:
        """Add attempts to the record, unless other processes write it all the time."""
        subscription = pending.subscription
        project, name = subscription.queue.project, subscription.name
        attempts = tuple(pending.attempts)
        for _ in range(_MAX_ROUNDS):
            record = await self._management.get_record(KIND, project, name)
            stored = json.loads(record.value) if record else {"attempts": [], "failing_since": None}
            merged = sorted((*stored["attempts"], *attempts), key=lambda one: str(one["at"]))
            since = stored["failing_since"]
            if pending.succeeded_at or since is None:
                since = pending.failing_since
            value = {"attempts": merged[-MAX_ATTEMPTS:], "failing_since": since}
            left = max(subscription.expires_at - self._clock.now_ms(), _LATEST_MS)
            try:
                await self._management.put_record(
                    KIND,
                    project,
                    name,
                    json.dumps(value, ensure_ascii=False).encode(),
                    expected=record.version if record else 0,
                    ttl_ms=left,
                )
            except RecordChanged:
                continue
            written = {id(one) for one in attempts}
            pending.attempts = [one for one in pending.attempts if id(one) not in written]
            return
