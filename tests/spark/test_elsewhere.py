"""Jobs on two executors, which are processes of their own, and on a server of Spark Connect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ServerProcess
from tests.spark.conftest import environment
from tests.spark.jobs_driver import ROWS
from zaqar_lite.client import Client
from zaqar_lite.spark.cli import parser

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="a minute each: tests/run --all")
@pytest.mark.parametrize("where", ["cluster", "connect"])
def test_jobs_run_elsewhere(
    where: str, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.spark.jobs_driver", server.url, queue, str(tmp_path), where],
        cwd=tmp_path,
        env=environment(ROOT),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
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


def test_a_job_runs_here_or_there(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["stats", "--queue", "q", "--remote", "sc://spark:15002", "--master", "local[2]"]
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(given)
    assert ended.value.code == 2
    assert "--master: not allowed with argument --remote" in capsys.readouterr().err
