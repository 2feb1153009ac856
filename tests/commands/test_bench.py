"""The benchmark as a user runs it: figures, and a line instead of a traceback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ServerProcess
from tests.services.process import free_port, run_program
from zaqar_lite.bench import machine

BENCH = (sys.executable, "-m", "zaqar_lite.cli", "bench", "--scenario", "post1")


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    return run_program([*BENCH, *words])


@pytest.mark.parametrize(
    ("scenario", "connections", "seconds"),
    [
        *(("post1", "8", "0.3"), ("webhook,webhook20", "2", "0.3")),
        *(("pickup", "1", "1"), ("pickup", "4", "1")),
    ],
)
def test_figures_are_printed_and_written(
    tmp_path: Path, scenario: str, connections: str, seconds: str
) -> None:
    """Of posts, pickups and deliveries; every worker ends."""
    file, allowed = tmp_path / "figures", {"ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8"}
    with ServerProcess(env=allowed) as own:
        assert machine.server_processes(own.port) == [own.pid]
        words = ("--scenario", scenario, "--connections", connections, "--seconds", seconds)
        post_to = ("--post-url", own.url) if scenario == "pickup" else ()
        done = bench(*words, *post_to, "--url", own.url, "--json", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert "messages/s" in done.stdout
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert len(results) == scenario.count(",") + 1
    for result in results:
        assert result["messages_per_second"] > 0
        assert result["refused"] == {}
        assert 0 <= result["p50_ms"] <= result["p99_ms"] <= result["max_ms"] < 20_000


def test_a_server_that_is_away_or_killed_meanwhile_is_a_line_and_exit_code_4() -> None:
    done = bench("--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 4
    assert done.stderr.startswith("zaqar-lite bench: no answer")
    assert len(done.stderr.splitlines()) == 1
    with ServerProcess("memory://") as own:
        words = [*BENCH, "--url", own.url, "--seconds", "30"]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            running.stdout.readline()  # the machine's line: it begins
            os.kill(own.pid, signal.SIGKILL)
            _, said = running.communicate(timeout=20)
        assert running.returncode == 4
        assert said.startswith("zaqar-lite bench: no answer")
        assert len(said.splitlines()) == 1
