"""The data source `zaqar`: one format, three roles."""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from zaqar_lite.spark.browsing import BrowseStream, PushdownReader, ZaqarReader
from zaqar_lite.spark.claiming import ClaimStream
from zaqar_lite.spark.options import OptionError, parse
from zaqar_lite.spark.queues import named
from zaqar_lite.spark.rows import schema_with
from zaqar_lite.spark.writer import ZaqarStreamWriter, ZaqarWriter


class _Refused(DataSourceStreamReader):
    """Raise an error when a stream begins, because Spark hides errors that come earlier."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> Any:  # noqa: ANN401, N802 - as its other names below
        raise self._error

    latestOffset = read = initialOffset  # type: ignore[assignment]  # noqa: N815


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
        kind = PushdownReader if self._parsed.pushdown else ZaqarReader
        return kind(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Browse or claim in a streaming query (option `mode`)."""
        kind = ClaimStream if self._parsed.mode == "claim" else BrowseStream
        try:
            return kind(self._parsed, schema)
        except OptionError as error:
            return _Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> ZaqarWriter:
        """Write in a batch query.

        Raises:
            OptionError: the mode is overwrite; a queue is added to, never replaced.
        """
        if overwrite:
            raise OptionError("A queue can't be overwritten: write with .mode('append').")
        return ZaqarWriter(self._parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ZaqarStreamWriter:  # noqa: N802
        """Write in a streaming query."""
        return ZaqarStreamWriter(self._parsed, schema)
