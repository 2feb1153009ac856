"""Queue records, and the indexes over them that live in other slots.

A record is the hash `queue` in its queue's own slot, so that scripts compare its version in the
step that acts on it. Three indexes follow it: the `names` of a project, the `sources` of a
dead-letter queue, and the `exposing` queues. A change notes an *intent*, changes the record, then
makes the indexes equal to what the record says, and removes the intent. After a crash in between
the sweep finds the intent and does the rest; until then a name may be listed without a record
(readers skip it) or a new source be missing from its target's list. In a cluster a node that fails
over may lose the last writes of an index whose record is elsewhere: there the intent stays, and
half a minute later, when replicas have what was written, the sweep looks once more. Because that
node may have the intents, too, they are in a second slot there, which most clusters have elsewhere.
"""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from zaqar_lite.domain.errors import LimitReached, QueueChanged, Unavailable
from zaqar_lite.domain.metadata import dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.redis.connection import FollowUps
from zaqar_lite.storage.redis.faults import Fault
from zaqar_lite.storage.redis.keys import (
    EVERYWHERE,
    Keys,
    keys_of,
    keys_of_project,
    ref_of,
    tag_of,
)
from zaqar_lite.storage.redis.router import Router

logger = logging.getLogger(__name__)
SECOND = Keys("**", "everywhere")
"""Where a cluster has the intents, too: that slot and the first are a third of all slots apart."""


class RecordIndexes:
    """Read records, and keep their indexes up to date."""

    def __init__(self, router: Router, follow_ups: FollowUps) -> None:
        self._router = router
        self._follow_ups = follow_ups

    async def read(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record; None if there is none."""
        keys = keys_of(queue)
        fields = await self._router.command(
            keys.slot, "HMGET", keys.key("queue"), "version", "metadata", "exposing"
        )
        return None if fields[0] is None else make_record(queue, fields)

    @asynccontextmanager
    async def changing(self, queue: QueueRef) -> AsyncIterator[None]:
        """Change a record in the `with` block, then its indexes; after a crash the sweep does."""
        old = _target(await self.read(queue))
        noted = EVERYWHERE if self._router.is_one_server else None  # else it stays
        intent = json.dumps([tag_of(queue), old and tag_of(old), uuid4().hex]).encode()
        await self._router.run("intend", EVERYWHERE, intent, repeatable=True)
        if not self._router.is_one_server:  # that node may be away
            second = self._router.run("intend", SECOND, intent, repeatable=True)
            await self._follow_ups.run(second)
        try:
            yield
        except (QueueChanged, LimitReached):
            # Nothing changed, but a name may have been listed.
            await self._follow_ups.run(self._finish(intent, noted))
            raise
        await self._follow_ups.run(self._finish(intent, noted))

    async def heal(self, limit: int) -> None:
        """Finish up to `limit` changes that a crash interrupted."""
        run = self._router.run
        for noted in (EVERYWHERE,) if self._router.is_one_server else (EVERYWHERE, SECOND):
            intents: list[bytes] = []
            with suppress(Unavailable):  # one node must not hold up the sweep of all
                intents = await run("old_intents", noted, limit, repeatable=True)
            for intent in intents:
                try:
                    await self._finish(intent, noted)
                except (Unavailable, Fault) as exc:  # other queues' changes must not wait
                    logger.warning("the indexes of a queue will be mended later: %s", exc)

    async def _finish(self, intent: bytes, noted: Keys | None) -> None:
        """Make the indexes equal to the record; remove the intent from where it is `noted`."""
        tag, old_target, _ = json.loads(intent)
        await self._reindex(ref_of(tag), old_target and ref_of(old_target))
        if noted:
            await self._router.command(noted.slot, "ZREM", noted.key("intents"), intent)

    async def _reindex(self, queue: QueueRef, old_target: QueueRef | None) -> None:
        """Make the indexes equal to the record; repeat if the record changed meanwhile.

        Two calls at the same time may undo each other's work. But each reads the record again after
        its own writes, so the last one to write has seen the last record.
        """
        record = await self.read(queue)
        while True:
            target = _target(record)
            names = keys_of_project(queue.project)
            await self._set_member("ZREM", "ZADD", names, "names", queue.name, record is not None)
            for listed in {name for name in (old_target, target) if name is not None}:
                await self._set_member(
                    "SREM", "SADD", keys_of(listed), "sources", queue.name, listed == target
                )
            exposing = record is not None and record.exposing
            await self._set_member("ZREM", "ZADD", EVERYWHERE, "exposing", tag_of(queue), exposing)
            seen, record = record, await self.read(queue)
            if (seen and seen.version) == (record and record.version):
                return
            old_target = target

    async def _set_member(  # noqa: PLR0917 - private
        self, remove: str, add: str, keys: Keys, kind: str, member: str, is_member: bool
    ) -> None:
        verb = add if is_member else remove
        score = (0,) if verb == "ZADD" else ()
        await self._router.command(keys.slot, verb, keys.key(kind), *score, member)


def make_record(queue: QueueRef, fields: Any) -> QueueRecord:  # noqa: ANN401 - a reply
    """Make the record of a hash's version, metadata and exposing."""
    version, metadata, exposing = fields
    return QueueRecord(queue, json.loads(metadata), int(version), exposing == b"1")


def _target(record: QueueRecord | None) -> QueueRef | None:
    """The dead-letter queue that a record names."""
    name = None if record is None else dead_letter_target(record.metadata)
    return None if record is None or name is None else QueueRef(record.queue.project, name)
