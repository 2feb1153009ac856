"""A large file through the command line takes constant memory.

ZAQAR_TEST_BULK_MESSAGES=1000000 is the full measure; the default is quick.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ServerProcess
from zaqar_lite.client import Client

MESSAGES = int(os.environ.get("ZAQAR_TEST_BULK_MESSAGES", "200000"))
ZAQAR = (sys.executable, "-m", "zaqar_lite.cli")


def write(path: Path, count: int) -> None:
    with path.open("w", encoding="ascii") as file:
        for number in range(count):
            file.write(f'{{"n": {number}, "text": "{"x" * 170}"}}\n')


def post(server: ServerProcess, queue: str, path: Path) -> int:
    """Post a file; return the most memory that it took, in KiB."""
    words = [*ZAQAR, "message", "post", queue, "--file", str(path), "--url", server.url]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


@pytest.mark.slow
def test_a_file_is_posted_in_constant_memory(server: ServerProcess, tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    write(small, MESSAGES // 10)
    write(large, MESSAGES)
    little = post(server, "small", small)
    assert post(server, "large", large) - little < 8 * 1024
    with Client(server.url) as client:
        assert client.stats("large").total == MESSAGES
