"""The commands of the guides run as they are written."""

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.server import ServerProcess

SOURCE = Path(__file__).parents[2] / "api-ref" / "source"


@pytest.mark.parametrize("guide", ["guide-delayed-queues", "guide-dead-letters"])
def test_every_command_of_a_guide_works(guide: str) -> None:
    text = (SOURCE / f"{guide}.rst").read_text()
    blocks = re.findall(r"::\n\n((?:(?: {3}.*)?\n)+)", text)
    script = "\n".join(textwrap.dedent(block) for block in blocks)
    assert script.count("curl -X") >= 2
    with ServerProcess("memory://") as server:
        commands = script.replace("http://127.0.0.1:8888", server.url)
        finished = subprocess.run(
            ["bash", "-euc", 'curl() { command curl -sS --fail "$@"; }\n' + commands],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
