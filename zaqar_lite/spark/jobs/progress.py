"""Show on a terminal how many tasks of a job are done."""

import sys
import threading
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession


class Progress:
    """Poll Spark's status tracker while a `with` block runs; silent where nobody looks on."""

    def __init__(self, spark: SparkSession, name: str, *, shown: bool) -> None:
        self._spark = spark
        self._name = name
        self._shown = shown
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._shown:
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
            sys.stderr.write("\n")

    def _run(self) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not self._ended.wait(0.5):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            done = sum(stage.numCompletedTasks for stage in known)
            total = sum(stage.numTasks for stage in known)
            if total:
                bar = "#" * (30 * done // total)
                sys.stderr.write(f"\r{self._name} [{bar:<30}] {done}/{total} tasks ")
                sys.stderr.flush()
