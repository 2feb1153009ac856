"""The guide to identity: its lines lead from nothing to a server that asks who is there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import SOURCE, commands
from tests.services.process import free_port


class Shell:
    """A shell that runs one line after the other."""

    def __init__(self, folder: Path) -> None:
        paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("ZAQAR")}
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**ours, "PATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def run(self, line: str) -> tuple[int, str]:
        """Run a line; answer its exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A server in the background does not keep our pipe, nor is its exit code of use.
        line = line[:-1] + ">/dev/null &" if line.endswith("&") else line
        self._process.stdin.write(f'{line}\ncode=$?; echo; echo "=$code"\n')
        printed = []
        while not (text := self._process.stdout.readline()).startswith("="):
            assert text, "the shell has ended"
            printed.append(text)
        return int(text[1:]), "".join(printed).strip()

    def close(self) -> None:
        """End the shell and what runs in its background."""
        assert self._process.stdin is not None
        with self._process:  # which closes the pipes
            self._process.stdin.write("kill %1; wait; exit\n")
            self._process.stdin.close()
            self._process.wait(60)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def test_ten_lines_from_nothing_to_a_server_with_tls_and_two_keys(
    shell: Shell, tmp_path: Path
) -> None:
    install, certificate, serve, *rest = commands(SOURCE / "guide-identity.rst")[:10]
    assert install == "pip install '.[server]'"  # tests/docs/test_readme.py does that
    port = str(free_port())
    shell.run(certificate)
    shell.run(serve.replace(" &", f" --port {port} &"))
    code, _ = shell.run(
        "for i in $(seq 600); do"
        f" curl -s --cacert tls.pem https://localhost:{port}/ >/dev/null && break; sleep 0.1; done"
    )
    assert code == 0
    *settings, send, receive, refused = [line.replace("8888", port) for line in rest]
    for line in settings:
        assert shell.run(line)[0] == 0, line
    for name, verb in (("SENDER", "send"), ("RECEIVER", "receive")):
        _, key = shell.run(f"echo ${name}")
        assert re.fullmatch("zq_[0-9a-f]{16}_[0-9a-f]{48}", key), verb
    assert shell.run(send)[0] == 0
    code, claimed = shell.run(receive)
    assert json.loads(claimed)["body"] == {"order": 1}
    assert shell.run(refused)[1] == "refused"
