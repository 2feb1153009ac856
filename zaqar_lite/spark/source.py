"""The data source `zaqar`: one format, three roles."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from zaqar_lite.spark.browsing import BrowseStream, PushdownReader, ZaqarReader
from zaqar_lite.spark.claiming import ClaimStream
from zaqar_lite.spark.options import OptionError, parse
from zaqar_lite.spark.queues import named
from zaqar_lite.spark.rows import schema_with
from zaqar_lite.spark.writer import Sender, ZaqarStreamWriter, ZaqarWriter


class _Refused(DataSourceStreamReader):
    """Raise an error when a stream begins, because Spark hides errors that come earlier."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


class ZaqarDataSource(DataSource):
    """Read queues as rows and write rows as messages; the guide lists the options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "zaqar"

    def __init__(self, options: dict[str, str]) -> None:
        """Read the options; a wrong one is an error at `load()` and `save()`.

        Raises:
            OptionError: names the wrong option.
        """
        super().__init__(options)
        self._parsed = parse(self.options)

    def schema(self) -> StructType:
        """The columns of what is read; a narrower schema of the user's is honoured.

        Raises:
            OptionError: no queue was named.
        """
        named(self._parsed)
        return schema_with(self._parsed.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Browse in a batch query."""
        options = self._parsed
        kind = PushdownReader if options.pushdown else ZaqarReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Browse or claim in a streaming query (option `mode`)."""
        options = self._parsed
        try:
            return (ClaimStream if options.mode == "claim" else BrowseStream)(options, schema)
        except OptionError as error:
            return _Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> ZaqarWriter:
        """Write in a batch query.

        Raises:
            OptionError: the mode is overwrite; a queue is added to, never replaced.
        """
        if overwrite:
            raise OptionError("A queue can't be overwritten: write with .mode('append').")
        return ZaqarWriter(Sender(self._parsed, schema).check())

    def streamWriter(self, schema: StructType, overwrite: bool) -> ZaqarStreamWriter:  # noqa: N802
        """Write in a streaming query."""
        return ZaqarStreamWriter(Sender(self._parsed, schema, streaming=True).check())
