"""The wheel as users install it: Spark finds the format by itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ServerProcess
from tests.services.process import run_program
from tests.spark.conftest import environment
from zaqar_lite.client import Client

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import pyspark_zaqar_lite
import zaqar_lite
from zaqar_lite.spark.session import session
for module in (pyspark_zaqar_lite, zaqar_lite):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
spark = session("local[1]")
rows = spark.range(3).selectExpr("cast(id as string) as body")
options = {"endpoint": sys.argv[2], "queue": sys.argv[3]}
rows.write.format("zaqar").mode("append").options(**options).save()
print("read", spark.read.format("zaqar").options(**options).load().count())
"""


def _pip() -> list[str]:
    """`pip install` by whichever installer made the environment."""
    uv = shutil.which("uv")
    return [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="half a minute: tests/run --all")
def test_an_installed_wheel_is_found_without_a_call(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    # A copy: a build must not see, or leave, anything in the checkout.
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("zaqar_lite", "tempest_plugin"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    pip = [*_pip(), "-q", "--no-deps"]
    subprocess.run([*pip, "--target", site, source], check=True)
    finished = run_program(
        [sys.executable, "-c", PROGRAM, str(site), server.url, queue],
        cwd=tmp_path,
        env=environment(site),
    )
    assert "read 3" in finished.stdout, finished.stderr[-3000:]
    assert client.stats(queue).total == 3
    assert (site / "bin" / "zaqar-lite-spark").exists()
