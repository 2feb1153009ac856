"""The queues that are in memory: their rows, with counts that are written once a batch.

A queue is read when an operation asks for it. What an operation changes is in memory first and
in the row at the end of the batch, in the transaction of what it counts.
"""

import json
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import apsw

from zaqar_lite.domain.metadata import DONE_RETENTION, FAILED_RETENTION
from zaqar_lite.domain.models import QueueRecord, QueueRef

NEVER = 1 << 62
"""An instant that does not come."""
MOST_IN_MEMORY = 20_000
"""Queues that stay in memory after their batch."""

SET_RECORD = """UPDATE queue SET version = ?, metadata = ?, exposing = ?, has_filter = ?,
    dead_letter_queue = ? WHERE number = ?"""
_COLUMNS = """number, version, metadata, exposing, content, ready, delayed, leased, parked, bytes,
    keys, ended, sweep_at"""


class Queue:
    """A queue's row, and when time changes something in it, at the earliest.

    `content` numbers what it holds now. `ready_at` says when the first delay, parking or lease
    ends, `over_at` when the first message, key or retention does: they may be early, never late.
    `epoch` is the batch that changed it last. `reserved` counts messages that large posts, stored
    in steps, still have to bring.
    """

    __slots__ = (
        "bytes", "content", "delayed", "ended", "epoch", "keeps_done", "keys", "leased", "number",
        "over_at", "parked", "ready", "ready_at", "record", "ref", "reserved", "version",
    )  # fmt: skip

    def __init__(self, ref: QueueRef, number: int, content: int) -> None:
        self.ref = ref
        self.number = number
        self.content = content
        self.version = 0
        self.record: QueueRecord | None = None
        self.keeps_done = False
        self.ready = self.delayed = self.leased = self.parked = self.bytes = 0
        self.keys = self.ended = 0
        self.ready_at = self.over_at = NEVER
        self.epoch = self.reserved = 0

    @property
    def total(self) -> int:
        """How many messages it holds, expired ones too."""
        return self.ready + self.delayed + self.leased + self.parked

    @property
    def is_bare(self) -> bool:
        """Whether nothing is left that its row is for."""
        return not (self.version or self.total or self.keys or self.ended or self.reserved)

    @property
    def changes_at(self) -> int:
        """When time changes something in it, at the earliest."""
        return min(self.ready_at, self.over_at)

    def set_record(self, record: QueueRecord | None) -> None:
        """Keep the record that was stored, or that there is none."""
        self.record = record
        self.version = 0 if record is None else record.version
        self.keeps_done = record is not None and record.metadata.get(DONE_RETENTION) is not None
        if self.ended:
            self.over_at = 0  # a retention may have changed

    def retention_ms(self, state: str) -> int:
        """How long the list of done or failed messages keeps them; without a setting not at all."""
        key = DONE_RETENTION if state == "done" else FAILED_RETENTION
        retention = None if self.record is None else self.record.metadata.get(key)
        if retention is None:
            return 0
        return retention * 1000 if retention else NEVER

    def clear(self, content: int) -> None:
        """Hold nothing any more: what there was is garbage, under its old number."""
        self.content = content
        self.ready = self.delayed = self.leased = self.parked = self.bytes = 0
        self.ready_at = NEVER

    def counts(self) -> tuple[Any, ...]:
        """What `restore` sets again when a step is undone."""
        return (*_counts_of(self), self.record)

    def restore(self, counts: tuple[Any, ...]) -> None:
        """Undo what a step changed."""
        *rest, record = counts
        if record is not self.record:
            self.set_record(record)
        for name, value in zip(_COUNTS, rest, strict=True):
            setattr(self, name, value)


_COUNTS = (
    "content", "ready", "delayed", "leased", "parked", "bytes", "keys", "ended", "epoch",
    "ready_at", "over_at",
)  # fmt: skip
_counts_of = attrgetter(*_COUNTS)


class Queues:
    """The queues in memory, by project and name."""

    def __init__(self) -> None:
        self._known: dict[QueueRef, Queue] = {}

    def get(self, connection: apsw.Connection, ref: QueueRef) -> Queue | None:
        """The queue, if it has a row."""
        known = self._known.get(ref)
        if known is not None:
            return known
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM queue WHERE project = ? AND name = ?",
            ref,
            can_cache=True,
        ).fetchone()
        if row is None:
            return None
        number, version, metadata, exposing, content, *counts, sweep_at = row
        queue = Queue(ref, number, content)
        queue.ready, queue.delayed, queue.leased, queue.parked, queue.bytes = counts[:5]
        queue.keys, queue.ended = counts[5:]
        if version:
            queue.set_record(QueueRecord(ref, json.loads(metadata), version, bool(exposing)))
        queue.ready_at = queue.over_at = NEVER if sweep_at is None else sweep_at
        self._known[ref] = queue
        return queue

    def add(self, queue: Queue) -> None:
        """Keep a new queue."""
        self._known[queue.ref] = queue

    def forget(self, ref: QueueRef) -> None:
        """Read the queue anew when it is asked for again."""
        self._known.pop(ref, None)

    def forget_all(self) -> None:
        """Read every queue anew: a batch was undone."""
        self._known.clear()

    def shrink(self, epoch: int) -> None:
        """Forget queues when there are many, the ones that came first.

        Those that the batch `epoch` changed stay: who reads them waits until it is durable.
        """
        if len(self._known) <= MOST_IN_MEMORY:
            return
        known = self._known.items()
        old = [ref for ref, queue in known if queue.epoch < epoch and not queue.reserved]
        for ref in old[: len(self._known) - MOST_IN_MEMORY // 2]:
            del self._known[ref]


def write_counts(connection: apsw.Connection, queues: Iterable[Queue], now: int) -> None:
    """Write the rows of queues that changed.

    What is due is written as due now, so that the sweep visits the other due queues first.
    """
    connection.executemany(
        """UPDATE queue SET content = ?, ready = ?, delayed = ?, leased = ?, parked = ?, bytes = ?,
           keys = ?, ended = ?, sweep_at = ? WHERE number = ?""",
        [
            (
                queue.content, queue.ready, queue.delayed, queue.leased, queue.parked, queue.bytes,
                queue.keys, queue.ended, _sweep_at(queue, now), queue.number,
            )
            for queue in queues
        ],
    )  # fmt: skip


def _sweep_at(queue: Queue, now: int) -> int | None:
    at = 0 if queue.is_bare else queue.changes_at
    return None if at >= NEVER else max(at, now)
