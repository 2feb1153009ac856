"""The commands of the guides run as they are written."""

import re
import textwrap
from pathlib import Path

from tests.server import ServerProcess
from tests.services.process import run_program

SOURCE = Path(__file__).parents[2] / "api-ref" / "source"


def run(commands: str) -> str:
    """Run commands of a guide in a shell, with shorter waits; answer what they print."""
    with ServerProcess("memory://") as server:
        for written, here in (
            ("http://127.0.0.1:8888", server.url),
            ("wait=20", "wait=4"),
            ("uuidgen", "cat /proc/sys/kernel/random/uuid"),
        ):
            commands = commands.replace(written, here)
        finished = run_program(
            ["bash", "-euc", 'curl() { command curl -sS --fail "$@"; }\n' + commands]
        )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def play(guide: str) -> str:
    """Run all commands of a guide in one shell."""
    text = (SOURCE / f"{guide}.rst").read_text()
    blocks = re.findall(r"::\n\n((?:(?: {3}.*)?\n)+)", text)
    script = "\n".join(textwrap.dedent(block) for block in blocks)
    assert script.count(" -X ") >= 2
    return run(script)


def test_the_first_command_about_webhooks_works() -> None:
    text = (SOURCE / "guide-webhooks.rst").read_text()
    (command,) = re.findall(r"^   curl (?:.*\\\n)*.*$", text, re.MULTILINE)
    printed = run(command)
    assert '"subscription_id"' in printed
    assert '"secret"' in printed


def test_the_commands_about_delayed_queues_work() -> None:
    play("guide-delayed-queues")


def test_the_commands_about_retries_work_and_the_letter_says_why() -> None:
    printed = play("guide-retries")
    assert printed.count('"status":204') == 3
    letters = printed.rpartition('{"messages":')[2]
    assert letters.count('"reason":"exit_1"') == 2
    assert '"reason":"max_failures"' in letters
    assert '"body":"poison"' in letters
