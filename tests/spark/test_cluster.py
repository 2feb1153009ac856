"""Jobs on a cluster of two executors, which are processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ServerProcess
from tests.spark.cluster_driver import ROWS
from zaqar_lite.client import Client

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="a minute: tests/run --all")
def test_jobs_run_on_two_executors(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.spark.cluster_driver", server.url, queue, str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert json.loads(finished.stdout.splitlines()[-1]) == {
        "hosts": 2,
        "stored": ROWS,
        "read": ROWS,
        "claimed": ROWS,
        "archived": ROWS,
        "moved": 40,
    }
    assert client.stats(queue).total == 40
    assert client.stats(f"{queue}-dead").total == 0
