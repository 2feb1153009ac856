"""Spark elsewhere: on Connect, in a notebook, from an installed wheel."""

import json
import os
import re
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.server import ServerProcess
from tests.services.process import run_program
from tests.spark.conftest import environment
from tests.spark.jobs_driver import ROWS
from zaqar_lite.client import Client

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="a minute each: tests/run --all")
@pytest.mark.parametrize("where", ["cluster", "connect"])
def test_jobs_run_elsewhere(
    where: str, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    finished = run_program(
        [sys.executable, "-m", "tests.spark.jobs_driver", server.url, queue, str(tmp_path), where],
        cwd=tmp_path,
        env=environment(ROOT),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert json.loads(finished.stdout.splitlines()[-1]) == {
        "stored": ROWS,
        "read": ROWS,
        "counted": ROWS,
        "claimed": ROWS,
        "archived": ROWS,
        "letters": 40,
        "moved": 40,
    }
    assert client.stats(queue).total == 40
    assert client.stats(f"{queue}-dead").total == 0


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
