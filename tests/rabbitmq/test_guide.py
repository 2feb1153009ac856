"""The guide to long delays: its commands run in their order, and print what it says."""

import re
import shlex
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

from tests.rabbitmq.conftest import Host
from tests.rabbitmq.test_commands import delay
from tests.server import ServerProcess
from tests.services import free_port
from tests.services.process import run_program, wait_until

GUIDE = Path(__file__).parents[2] / "api-ref" / "source" / "guide-long-delays.rst"
COMMAND = re.compile(r"^ +(?:\$ )?((?:zaqar-lite|curl) (?:.*\\\n)*.*)$", re.MULTILINE)
PRINTED = re.compile(r"^   \$ (zaqar-lite .*)\n((?:   .*\n)+)", re.MULTILINE)
PYTHON = re.compile(r"^From Python::\n\n((?:   .*\n|\n)+)", re.MULTILINE)


BROKER = {
    "delay apply": {"management"},
    "delay verify": {"management"},
    "delay relay": {"amqp"},
    "delay publish": {"amqp"},
    "delay cancel": {"amqp"},
    "delay migrate": {"amqp"},
}
"""Which addresses a command takes; without these it goes to where a broker usually is."""


class Reader:
    """Somebody who types what the guide says, with the addresses of a broker and a server here."""

    def __init__(self, host: Host, zaqar: ServerProcess) -> None:
        self.text = GUIDE.read_text(encoding="utf-8")
        self.addresses = {
            "management": ("--management-url", host.management_url, "--vhost", host.name),
            "amqp": ("--amqp-url", host.amqp_url),
        }
        for shown, real in {
            "http://guest:guest@127.0.0.1:15672": host.management_url,
            "amqp://guest:guest@127.0.0.1/": host.amqp_url,
            "http://127.0.0.1:8888": zaqar.url,
            "9419": str(free_port()),
        }.items():
            self.text = self.text.replace(shown, real)

    def words(self, command: str) -> list[str]:
        words = shlex.split(command.replace("\\\n", " ").removesuffix(" &"))
        for kind in BROKER.get(" ".join(words[1:3]), ()):
            words += self.addresses[kind]
        return words[1:]

    def curls(self, command: str) -> bool:
        words = ["curl", "-s", *self.words(command)]
        return '"order"' in run_program(words, check=True).stdout

    def relays(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "zaqar_lite.cli", *self.words(command)])


def test_each_command_runs_and_prints_what_the_guide_says(
    host: Host,
    zaqar: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(host, zaqar)
    printed = dict(PRINTED.findall(reader.text))
    (program,) = PYTHON.findall(reader.text)
    ran = []
    relays = []
    try:
        for command in COMMAND.findall(reader.text):
            ran.append(" ".join(command.split()[1:3]))
            if command.startswith("curl"):
                wait_until(partial(reader.curls, command), [])
                exec(textwrap.dedent(program), {})  # noqa: S102 - our own guide
            elif ran[-1] == "delay relay":
                relays.append(reader.relays(command))
            elif ran[-1] != "serve --store":  # that runs
                if ran[-1] == "delay migrate":
                    later = "zaqar-lite delay apply --prefix later --max-delay 4y"
                    assert delay(*reader.words(later)[1:]) == 0
                capsys.readouterr()
                assert delay(*reader.words(command)[1:]) == 0
                if command in printed:
                    wanted = textwrap.dedent(printed.pop(command)).strip()
                    assert capsys.readouterr().out.strip() == wanted
    finally:
        for relay in relays:
            relay.terminate()
        ended = [relay.wait() for relay in relays]
    assert ended == [0] * len(relays)
    assert not printed
    assert {*BROKER} <= {*ran}
