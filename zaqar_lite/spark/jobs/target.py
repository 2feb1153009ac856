"""The server and queue that a job works on."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zaqar_lite.client import Client
from zaqar_lite.spark.options import parse
from zaqar_lite.spark.writer import COUNTS

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a queue, and how to reach it.

    `page_size` is how many messages a request may have, at most; None stands for 200, or for fewer
    where the server allows fewer. `access` are other options of the data source: credentials,
    certificates, time limits.
    """

    endpoint: str
    queue: str
    project: str | None = None
    page_size: int | None = None
    access: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """The same as options of the data source."""
        given = {"endpoint": self.endpoint, "queue": self.queue, "project": self.project}
        given["pageSize"] = None if self.page_size is None else str(self.page_size)
        return {name: value for name, value in given.items() if value} | dict(self.access)

    def client(self) -> Client:
        """Open a client."""
        return parse(self.options()).client()

    def read(
        self, spark: SparkSession, archive: str | None = None, **given: str | int
    ) -> DataFrame:
        """Browse the queue, or read the Parquet files of an archive instead."""
        if archive is not None:
            return spark.read.parquet(archive)
        return spark.read.format("zaqar").options(**{**self.options(), **given}).load()

    def write(self, rows: DataFrame, *, told: int = 20, **options: object) -> Summary:
        """Post rows; return what the tasks did, added up.

        `refused` tells keys and reasons of the first `told` rows that were refused.
        """
        given = {name: str(value) for name, value in options.items() if value is not None}
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "report"
            writer = rows.write.format("zaqar").mode("append").options(**self.options())
            writer.options(**given).option("reportPath", str(report)).save()
            done = json.loads(report.read_text())
        return {name: done[name] for name in COUNTS} | {"refused": done["refused"][:told]}
