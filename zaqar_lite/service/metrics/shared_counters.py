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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zaqar_lite.service.metrics.metric_families import Row

logger = logging.getLogger("zaqar_lite")
_DOCUMENT = 262_144
"""Bytes of the document, with its length in the first eight."""


class Place(NamedTuple):
    """A process's place on a board: the file, how many rows it has, and which one is its own."""

    path: Path
    rows: int
    own: int


def make_file(rows: int, size: int) -> Path:
    """Make the file of a board of `rows` rows of `size` cells; whoever makes it removes it."""
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
