"""What the processes of a server show each other: a row of cells for each, and one document.

A process counts in a list, and copies the list into its row of a mapped file at every `publish`. A
process that takes the place of one that died continues its row, so counters go back by no more than
what was counted after the last `publish`.
"""

import json
import logging
import mmap
import os
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from zaqar_lite.domain.models import QueueRef

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LATENESS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3_600.0)


class MetricType(Enum):
    """What a family's numbers mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class Family:
    """Metrics of one name: one for each combination of the labels' values.

    A histogram's cells are the sum, and a count for each bucket.
    """

    name: str
    kind: MetricType
    help: str
    labels: dict[str, Sequence[str]] = field(default_factory=dict)
    bounds: Sequence[float] = ()
    first: int = 0

    @property
    def width(self) -> int:
        """Cells of one combination."""
        return len(self.bounds) + 2 if self.kind is MetricType.HISTOGRAM else 1

    def cells(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The first cell of each combination of labels, with their values."""
        for index, values in enumerate(product(*self.labels.values())):
            yield self.first + index * self.width, values

    def at(self, *values: str) -> int:
        """The first cell of one combination."""
        index = 0
        for known, value in zip(self.labels.values(), values, strict=True):
            index = index * len(known) + known.index(value)
        return self.first + index * self.width


Flows = dict[QueueRef, list[int]]
"""Messages posted, handed out and deleted, of each queue that somebody looks at."""


class Row:
    """The numbers of one process; a list, because nothing is counted in faster.

    The list stays the same one, so that who counts may keep it.
    """

    __slots__ = ("cells", "flows")

    def __init__(self) -> None:
        self.cells: list[float] = []
        self.flows: Flows = {}

    def add(self, cell: int, count: float = 1) -> None:
        """Count."""
        self.cells[cell] += count

    def observe(self, cell: int, bounds: Sequence[float], value: float) -> None:
        """Note in a histogram that something took `value`."""
        self.cells[cell] += value
        self.cells[cell + 1 + bisect_left(bounds, value)] += 1


MESSAGES = {
    "posted": "Messages that posts stored.",
    "duplicate": "Posted messages that were stored before, by their idempotency keys.",
    "handed_out": "Messages handed out by claims; each hand-out counts.",
    "popped": "Messages handed out and deleted in one step, by pops.",
    "deleted": "Messages that deletes named, and messages acknowledged by settling.",
    "released": "Messages that consumers gave back without failure, by settling.",
    "failed": "Messages that consumers gave back as failed.",
    "lapsed": "Messages whose lease lapsed, when the sweep brought them back.",
    "expired": "Messages that expired, when the sweep removed them.",
    "promoted": "Delayed messages that were due, when the sweep made them ready.",
    "redriven": "Messages that jobs moved to another queue, and those that clients redrive: posts "
    "whose idempotency key is the id of another message.",
}
"""Counters of messages, by what happened to them. A claim that meets a lapsed lease before the
sweep does not count it. What claims hand out is not called claimed here, because
`zaqar_lite_claimed_messages` is the gauge of that state."""
DEAD = ("rejected", "failed", "exhausted", "swept")
OPERATIONS = (
    "post",
    "claim",
    "settle",
    "delete",
    "pop",
    "release",
    "renew",
    "move",
    "list_messages",
)
DELIVERIES = ("delivered", "failed", "undeliverable", "gone")
_CODES = *range(200, 206), 300, 304, *range(400, 418), 422, 423, 425, 429, 431, *range(500, 505)
STATUSES = tuple(map(str, _CODES))
"""What routes answer; another status counts as 500."""


class MetricFamilies:
    """All families, laid out one behind the other; those of requests come last."""

    def __init__(self) -> None:
        self.all: list[Family] = []
        self.size = 0
        self.messages = {
            name: self._counter(f"{name}_messages", text) for name, text in MESSAGES.items()
        }
        self.dead = self._counter(
            "dead_lettered_messages",
            "Messages that became dead letters: rejected by a consumer, failed too often, "
            "exhausted (claimed too often, when a claim met them), or swept (when the sweep did).",
            reason=DEAD,
        )
        self.pickup = self._histogram(
            "pickup_seconds",
            "Seconds from ready to the first hand-out, for the first message of each claim.",
            LATENESS,
        )
        self.lateness = self._histogram(
            "delay_lateness_seconds",
            "Seconds from due to the first hand-out, for each delayed message.",
            LATENESS,
        )
        self.store_seconds = self._histogram(
            "store_operation_seconds",
            "Seconds that operations of the store took.",
            LATENCIES,
            operation=OPERATIONS,
        )
        self.store_errors = self._counter(
            "store_errors",
            "Operations of the store that failed, because it did not answer.",
            operation=OPERATIONS,
        )
        self.deliveries = self._counter(
            "deliveries", "Attempts to deliver messages to subscribers.", outcome=DELIVERIES
        )
        self.disabled = self._counter(
            "disabled_subscriptions",
            "Subscriptions that the server disabled: a receiver answered 410, or failed too long.",
        )
        self.sweeps = self._counter("sweeps", "Steps of the background sweep.")
        self.swept = self._counter("swept_entries", "Entries that the sweep removed or changed.")
        self.sweep_seconds = self._counter("sweep_seconds", "Seconds that steps of the sweep took.")
        self.sweep_debt = self._gauge(
            "sweep_debt_seconds", "Seconds since the sweep last had no work left."
        )
        self.disk_is_low = self._gauge(
            "store_disk_is_low",
            "1 while the store refuses posts: its disk is nearly full, or Redis is.",
        )
        self.log_bytes = self._gauge(
            "store_log_bytes", "Bytes of the embedded store's write-ahead log."
        )
        self.waiters = self._gauge("waiting_requests", "Requests that are waiting for a message.")
        self.connections = self._gauge("connections", "Open connections of clients.")
        self.sockets = self._gauge("websockets", "Open connections that are WebSockets.")
        self.requests = self.request_seconds = self.sweeps

    def add_routes(self, routes: Sequence[str]) -> None:
        """Lay out the families of requests, by method and template."""
        self.requests = self._counter(
            "http_requests", "Requests that were answered.", route=routes, status=STATUSES
        )
        self.request_seconds = self._histogram(
            "http_request_seconds",
            "Seconds until a request was answered, including what it waited for a message.",
            LATENCIES,
            route=routes,
        )

    def _counter(self, name: str, text: str, **labels: Sequence[str]) -> Family:
        return self._add(Family(f"{name}_total", MetricType.COUNTER, text, labels))

    def _gauge(self, name: str, text: str) -> Family:
        return self._add(Family(name, MetricType.GAUGE, text))

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], **labels: Sequence[str]
    ) -> Family:
        return self._add(Family(name, MetricType.HISTOGRAM, text, labels, bounds))

    def _add(self, family: Family) -> Family:
        family.name = f"zaqar_lite_{family.name}"
        family.first = self.size
        self.all.append(family)
        self.size += prod(map(len, family.labels.values())) * family.width
        return family


logger = logging.getLogger("zaqar_lite")
_DOCUMENT = 262_144
"""Bytes of the document, with its length in the first eight."""


class Place(NamedTuple):
    """A process's place in the shared file: its path, its number of rows, and which is its own."""

    path: Path
    rows: int
    own: int


def make_file(rows: int, size: int) -> Path:
    """Make the shared file of `rows` rows of `size` cells; whoever makes it removes it."""
    with tempfile.NamedTemporaryFile(
        prefix=f"zaqar-lite-metrics-{os.getpid()}-", delete=False
    ) as file:
        file.truncate(_DOCUMENT + rows * size * 8)
        return Path(file.name)


class SharedCounters:
    """Rows of cells: of this process alone, or those of `place`."""

    def __init__(self, place: Place | None = None) -> None:
        self._place = place
        self._memory = memoryview(bytearray(_DOCUMENT))
        self._rows: list[memoryview[float]] = []
        self.row = Row()
        """The row of this process; nothing can be counted before `lay_out`."""
        self._last: dict[str, Any] = {}

    def lay_out(self, size: int) -> None:
        """Make or find the rows, of `size` cells each."""
        place = self._place
        self.row.cells += [0] * size
        if place is None:
            return
        try:
            with place.path.open("r+b") as file:
                self._memory = memoryview(mmap.mmap(file.fileno(), 0))
        except OSError as exc:  # a cleaner of temporary files may have removed it
            logger.warning("this process counts alone: %s: %s", place.path, exc.strerror)
            self._place = None
            return
        cells = self._memory[_DOCUMENT : _DOCUMENT + place.rows * size * 8].cast("d")
        self._rows = [cells[row * size : (row + 1) * size] for row in range(place.rows)]
        self.row.cells[:] = self._rows[place.own].tolist()

    def publish(self) -> None:
        """Let the other processes see what this one has counted."""
        if self._place is not None:
            self._rows[self._place.own][:] = memoryview(array("d", self.row.cells))

    @property
    def is_shared(self) -> bool:
        """Whether other processes read it too."""
        return self._place is not None

    def sums(self, *, largest: Sequence[int] = ()) -> list[float]:
        """What all processes have counted together; of some cells, the largest."""
        if not self._rows:
            return self.row.cells
        self.publish()
        sums = [sum(column) for column in zip(*(row.tolist() for row in self._rows), strict=True)]
        for cell in largest:
            sums[cell] = max(row[cell] for row in self._rows)
        return sums

    def write(self, document: dict[str, Any]) -> None:
        """Replace the document; one that has no room is left out."""
        text = json.dumps(document).encode()
        if len(text) <= _DOCUMENT - 8:
            self._memory[:8] = (0).to_bytes(8, "little")
            self._memory[8 : 8 + len(text)] = text
            self._memory[:8] = len(text).to_bytes(8, "little")

    def read(self) -> dict[str, Any]:
        """The document; the one before while it is being replaced, empty when there is none."""
        length = int.from_bytes(self._memory[:8], "little")
        if length:
            with suppress(ValueError):  # another process is writing it
                self._last = json.loads(bytes(self._memory[8 : 8 + length]))
        return self._last
