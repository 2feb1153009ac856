"""The data source `zaqar`: one format, three roles."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from zaqar_lite.spark.browse_stream import BrowseStream
from zaqar_lite.spark.claim_stream import ClaimStream
from zaqar_lite.spark.options import OptionError, parse
from zaqar_lite.spark.reader import PushdownReader, ZaqarReader
from zaqar_lite.spark.rows import SCHEMA
from zaqar_lite.spark.writer import Sender, ZaqarStreamWriter, ZaqarWriter


class ZaqarDataSource(DataSource):
    """Read queues as rows and write rows as messages; the guide lists the options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "zaqar"

    def schema(self) -> str:
        """The columns of what is read; a narrower schema of the user's is honoured."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Browse in a batch query."""
        options = parse(self.options)
        kind = PushdownReader if options.pushdown else ZaqarReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Browse or claim in a streaming query (option `mode`)."""
        options = parse(self.options)
        if options.mode == "claim":
            return ClaimStream(options, schema)
        return BrowseStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ZaqarWriter:
        """Write in a batch query.

        Raises:
            OptionError: the mode is overwrite; a queue is added to, never replaced.
        """
        if overwrite:
            raise OptionError("A queue can't be overwritten: write with .mode('append').")
        return ZaqarWriter(Sender(parse(self.options), schema).check())

    def streamWriter(self, schema: StructType, overwrite: bool) -> ZaqarStreamWriter:  # noqa: N802
        """Write in a streaming query."""
        return ZaqarStreamWriter(Sender(parse(self.options), schema, streaming=True).check())
