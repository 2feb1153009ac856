"""Health: operations really executed on a queue of their own; and readiness for requests."""

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from zaqar_lite.domain.errors import Unavailable, ZaqarLiteError
from zaqar_lite.domain.identity import HEALTH_PROJECT
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import ClaimRequest, QueueRef, Stats
from zaqar_lite.service.background import LoggedErrors
from zaqar_lite.service.claims import Claims
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.pooling.placement import Place
from zaqar_lite.service.pooling.pooled_store import PooledMessages
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore

T = TypeVar("T")
logger = logging.getLogger(__name__)
_POSTED = 100
_CLAIMED = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one operation went; `reference` names the line in the log that tells why it failed."""

    succeeded: bool
    seconds: float
    reference: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """The health of a store that answers: each operation's outcome, the probe's own counts."""

    operations: dict[str, Outcome]
    volume: Stats
    capabilities: Sequence[str]


@dataclass(eq=False, repr=False)
class Health:
    """Find out whether the store works, by working with it."""

    store: MessageStore
    queues: Queues
    messages: Messages
    claims: Claims
    pooled: PooledMessages | None = None

    async def report(self) -> Report:
        """Post, list, claim and delete on a random queue and time each.

        Raises:
            Unavailable: the store does not answer at all.
        """
        return await self._look_at(None)

    async def pools(self) -> dict[str, Report | None] | None:
        """Report of each pool, None for one that does not answer; None where there are no pools.

        Raises:
            Unavailable: the catalogue can't be read.
        """
        if self.pooled is None:
            return None
        reports: dict[str, Report | None] = {}
        for name in sorted(await self.pooled.registry.pools()):
            reports[name] = None
            with LoggedErrors(f"health: the pool {name!r}"):
                reports[name] = await self._look_at(name)
        return reports

    async def _look_at(self, pool: str | None) -> Report:
        """Work with a queue in a pool that answers, or in the server's own store.

        Raises:
            Unavailable: it does not answer.
        """
        queue = QueueRef(HEALTH_PROJECT, uuid.uuid4().hex)
        store = self.store if self.pooled is None else await self.pooled.pool(pool)
        await store.ping()
        if self.pooled is not None:
            await self.pooled.placements.write(queue, Place(pool))
        return await self._probe(queue, sorted(one.value for one in store.capabilities))

    async def _probe(self, queue: QueueRef, capabilities: Sequence[str]) -> Report:
        """Work with a queue; each operation works on what the earlier ones left."""
        operations: dict[str, Outcome] = {}
        client_id = new_claim_id()

        async def note(name: str, operation: Awaitable[T]) -> T | None:
            started, result, reference = time.perf_counter(), None, None
            try:
                result = await operation
            except ZaqarLiteError as exc:
                reference = str(uuid.uuid4())
                logger.warning("health: %s failed, ref %s: %s", name, reference, exc)
            seconds = time.perf_counter() - started
            operations[name] = Outcome(reference is None, seconds, reference)
            return result

        await note("create_queue", self.queues.create(queue, {}))
        drafts = [Draft(b'"probe"', ttl=60)] * _POSTED
        post = self.messages.post(queue, drafts, size=0, client_id=client_id)
        receipt = await note("post_messages", post)
        ids = [] if receipt is None else [entry.id for entry in receipt.posted]
        wanted = ClaimRequest(_CLAIMED, ttl_ms=60_000, grace_ms=60_000, client_id=client_id)
        claimed = await note("claim_messages", self.claims.create(queue, wanted))
        volume = Stats()
        if operations["claim_messages"].succeeded:
            volume = await self.store.stats(queue)
        page = self.messages.list_messages(
            queue,
            marker=None,
            until=None,
            limit=_CLAIMED,
            exclude_client_id=None,
            include_claimed=True,
            include_delayed=True,
        )
        await note("list_messages", page)
        last = ids[-1] if ids else new_claim_id()
        await note("delete_messages", self.messages.delete(queue, last, None))
        claim_id = "" if claimed is None else claimed[0]
        await note("delete_claim", self.claims.release(queue, claim_id))
        delete = self.messages.delete_many(queue, ids[:_CLAIMED], None)
        await note("bulk_delete_messages", delete)
        await note("delete_queue", self.queues.delete(queue))
        return Report(operations, volume, capabilities)


_PATIENCE = 2.0
"""Seconds that the store has to answer; probes give up after little more."""
MIN_FREE = 16 << 20
"""Bytes that the disk of a store with files must have free."""


class Check(NamedTuple):
    """One thing that was looked at; `problem` says what is wrong, None when it is well.

    A `warning` is for operators: the server is ready nevertheless.
    """

    name: str
    problem: str | None
    warning: str | None = None


class Readiness:
    """Tell whether the server is ready: its store is open and takes writes, and it does not stop.

    Anybody may ask, so no problem says where the store is: the log does. `directory` is where the
    store's files lie, None for a store elsewhere.
    """

    def __init__(
        self, store: MessageStore, check_open: Callable[[], None], directory: Path | None
    ) -> None:
        self._store = store
        self._check_open = check_open
        self._directory = directory
        self._draining = False

    def drain(self) -> None:
        """Be unready from now on: the server is about to stop, and still serves."""
        self._draining = True

    async def checks(self) -> tuple[Check, ...]:
        """Look at everything; never raises."""
        return (
            Check("store", await self._store_problem(), self._store_warning()),
            Check("disk", self._disk_problem()),
            Check("draining", "the server is stopping" if self._draining else None),
        )

    async def _store_problem(self) -> str | None:
        try:
            self._check_open()
            await asyncio.wait_for(self._store.ping(), _PATIENCE)
        except TimeoutError:
            return f"it did not answer within {_PATIENCE:.0f} s"
        except Unavailable as exc:
            return exc.shown
        return None

    def _store_warning(self) -> str | None:
        """Say that there is no room: consumers must get through, because they make some."""
        if self._store.condition().is_low:
            return "full, or nearly so: posts are refused; claims, settlements and deletions go on"
        return None

    def _disk_problem(self) -> str | None:
        if self._directory is None:
            return None
        try:
            found = os.statvfs(self._directory)
        except OSError as exc:
            return f"the store's directory: {exc.strerror}"
        free = found.f_bavail * found.f_frsize
        if free < MIN_FREE:
            return f"{free >> 20} MiB are free; {MIN_FREE >> 20} are needed"
        return None
