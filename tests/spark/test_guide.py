"""The guide's worked example runs as it is printed."""

import re
import textwrap
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.server import ServerProcess
from zaqar_lite.client import Client

GUIDE = Path(__file__).parents[2] / "api-ref" / "source" / "guide-spark.rst"


def example() -> str:
    text = GUIDE.read_text()
    match = re.search(r"zaqar-lite serve``\. ::\n\n((?:   .*\n|\n)+)", text)
    assert match is not None
    return textwrap.dedent(match.group(1))


def test_the_worked_example_does_what_it_says(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = f"ratings{uuid.uuid4().hex}"
    code = example().replace("http://127.0.0.1:8888", server.url)
    code = code.replace('Path("ratings")', f"Path({str(tmp_path)!r})")
    code = code.replace('"ratings', f'"{queue}')
    exec(compile(code, str(GUIDE), "exec"), {})  # noqa: S102 - our own guide
    told = capsys.readouterr().out
    assert "'letters': 20" in told
    table = spark.read.parquet(str(tmp_path / "table"))
    assert table.count() + 20 == 1501
    assert table.where("stars is null").count() == 0
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    with Client(server.url) as client:
        assert client.stats(queue).total == 20
        assert client.stats(f"{queue}-dead").total == 0
