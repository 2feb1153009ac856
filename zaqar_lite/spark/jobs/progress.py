"""Show on a terminal how far a job is: tasks of its stages, and rows of its streaming batches."""

import sys
import threading
from types import TracebackType
from typing import Self, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

OBSERVED = "zaqar"  # the name of a streaming query's metrics


class Progress:
    """Poll Spark's status tracker while a `with` block runs; print only on a terminal.

    A streaming query that observes metrics called `OBSERVED` with a column `rows` has its rows
    added up beside the bar.
    """

    def __init__(
        self, spark: SparkSession, name: str, *, shown: bool, terminal: TextIO | None = None
    ) -> None:
        self._spark = spark
        self._name = name
        self._shown = shown
        self._terminal = terminal or sys.stderr
        self._ended = threading.Event()
        self._rows = _Rows()

    def __enter__(self) -> Self:
        if self._shown:
            self._spark.streams.addListener(self._rows)
            threading.Thread(target=self._run, name="zaqar-progress", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._shown:
            self._spark.streams.removeListener(self._rows)
            self._terminal.write("\n")

    @property
    def rows(self) -> int:
        """How many rows streaming queries have observed so far."""
        return self._rows.count

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            if line := self._line():
                self._terminal.write(f"\r{line}")
                self._terminal.flush()

    def _line(self) -> str:
        tracker = self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        done = sum(stage.numCompletedTasks for stage in known)
        total = sum(stage.numTasks for stage in known)
        if not total:
            return ""
        bar = "#" * (30 * done // total)
        rows = f", {self.rows:,} rows" if self.rows else ""
        return f"{self._name} [{bar:<30}] {done}/{total} tasks{rows} "


class _Rows(StreamingQueryListener):
    """Add up the rows that streaming queries observe."""

    def __init__(self) -> None:
        self.count = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Count a batch."""
        seen = event.progress.observedMetrics.get(OBSERVED)
        if seen is not None:
            self.count += seen["rows"]

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""
