"""The benchmark as a user runs it: figures, and a line instead of a traceback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ServerProcess
from tests.services.process import free_port
from zaqar_lite.bench import machine

BENCH = (sys.executable, "-m", "zaqar_lite.cli", "bench", "--scenario", "post1")


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*BENCH, *words], capture_output=True, text=True, check=False, timeout=60)


def test_figures_are_printed_and_written(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "figures"
    done = bench("--url", server.url, "--seconds", "0.3", "--json", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    (result,) = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert result["messages_per_second"] > 0
    assert result["refused"] == {}
    assert "messages/s" in done.stdout


def test_the_server_is_all_of_its_processes(server: ServerProcess) -> None:
    assert machine.server_processes(server.port) == [server.pid]


def test_no_server_is_a_line_and_exit_code_4() -> None:
    done = bench("--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 4
    assert done.stderr.startswith("zaqar-lite bench: no answer")
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_killed_meanwhile_is_a_line_and_exit_code_4() -> None:
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


@pytest.mark.parametrize("workers", ["1", "4"])
def test_pickups_are_counted_and_every_worker_ends(
    server: ServerProcess, tmp_path: Path, workers: str
) -> None:
    file = tmp_path / "figures"
    words = ("--scenario", "pickup", "--connections", workers, "--seconds", "1")
    done = bench(*words, "--url", server.url, "--post-url", server.url, "--json", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    (result,) = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert result["messages_per_second"] > 0
    assert 0 <= result["p50_ms"] <= result["p99_ms"] <= result["max_ms"] < 20_000


def test_deliveries_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    allowed = {"ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8"}
    with ServerProcess(env=allowed) as own:
        words = ("--scenario", "webhook,webhook20", "--connections", "2", "--seconds", "0.3")
        done = bench(*words, "--url", own.url, "--json", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    for result in json.loads(file.read_text(encoding="utf-8"))["results"]:
        assert result["messages_per_second"] > 0
        assert 0 <= result["p50_ms"] <= result["p99_ms"] <= result["max_ms"] < 20_000
