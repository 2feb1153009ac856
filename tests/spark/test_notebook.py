"""The notebook page: each cell runs as it is printed, and prints what the page says."""

import re
import textwrap
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.server import ServerProcess

PAGE = Path(__file__).parents[2] / "api-ref" / "source" / "notebook-spark.rst"
CELL = re.compile(r"\.\. code-block:: (python|text)\n\n((?:   .*\n|\n)+)")


def test_each_cell_prints_what_the_page_says(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None  # the page's own session is this one
    queue = f"orders{uuid.uuid4().hex}"
    given = {"http://127.0.0.1:8888": server.url, '"orders': f'"{queue}'}
    given['Path("shop")'] = f"Path({str(tmp_path)!r})"
    names: dict[str, object] = {}
    told = ""
    for kind, text in CELL.findall(PAGE.read_text(encoding="utf-8")):
        cell = textwrap.dedent(text).strip()
        if kind == "text":
            assert told == cell
            continue
        for old, new in given.items():
            cell = cell.replace(old, new)
        exec(compile(cell, str(PAGE), "exec"), names)  # noqa: S102 - our own guide
        told = capsys.readouterr().out.strip()
    assert "<svg" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
