"""The README: every block of it runs, in its order, against a real server."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import README, ROOT, URL, blocks, commands
from tests.server import ServerProcess
from tests.services.process import free_port, listens, run_program, wait_until
from zaqar_lite.client import Client
from zaqar_lite.storage.registry import DRIVERS, Driver


@pytest.fixture(scope="module")
def fresh_server() -> Iterator[ServerProcess]:
    """A server of the page's own: it uses plain queue names, and goes on from block to block."""
    with ServerProcess("memory://") as process:
        yield process


def run_python(source: str, server: ServerProcess) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source.replace(URL, server.url), {"__name__": "readme"})  # noqa: S102 - our own page
    return printed.getvalue().splitlines()


def run_command(line: str, server: ServerProcess) -> str:
    name, *words = shlex.split(line)
    assert name == "zaqar-lite"
    finished = run_program(
        [sys.executable, "-m", "zaqar_lite", *words],
        env={**os.environ, "ZAQAR_LITE_URL": server.url},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_message_is_posted_claimed_and_deleted(fresh_server: ServerProcess) -> None:
    (block,) = blocks(README, "bash")
    finished = run_program(
        ["bash", "-c", "shopt -s expand_aliases\n" + block.text.replace(URL, fresh_server.url)],
        check=True,
    )
    posted, claimed = re.findall(r"\{.*?\]\}", finished.stdout)
    assert "resources" in json.loads(posted)
    (held,) = json.loads(claimed)["messages"]
    assert held["body"] == {"order": 7}
    with Client(fresh_server.url, project="default") as client:
        assert client.stats("orders").total == 0


def test_the_worker_retries_and_its_letter_says_why_and_is_redriven(
    fresh_server: ServerProcess,
) -> None:
    worker = blocks(README, "python")[0].text
    handler = worker[worker.index("@worker") : worker.index("\nwith Client")]
    assert len([line for line in handler.splitlines() if line]) <= 10
    assert run_python(worker, fresh_server) == ["sent to ada"]
    with Client(fresh_server.url) as client:
        (busy,) = client.list_messages("mails", include_claimed=True, details=True)
        assert busy.failure_count == 1
        assert busy.attempts is not None
        assert [attempt.reason for attempt in busy.attempts] == ["http_503"]

        list_letters, redrive = (line for line in commands(README) if " dlq " in line)
        (letter,) = map(json.loads, run_command(list_letters, fresh_server).splitlines())
        assert letter["reason"] == "no_recipient"
        run_command(redrive, fresh_server)
        assert client.stats("lost").total == 0
        assert client.stats("mails").total == 2


def test_a_message_is_delayed_edited_and_cancelled(fresh_server: ServerProcess) -> None:
    _, reminder = blocks(README, "python")
    run_python(reminder.text, fresh_server)
    with Client(fresh_server.url) as client:
        assert client.stats("reminders").total == 0
        kept = textwrap.dedent(reminder.text).replace('    client.cancel("reminders", late)\n', "")
        run_python(kept, fresh_server)
        (late,) = client.list_messages("reminders", include_delayed=True, details=True)
        assert late.body == "call Grace"
        assert client.stats("reminders").delayed == 1


def test_a_message_goes_to_a_webhook() -> None:
    create, listen = (line for line in commands(README) if "9999" in line)
    port = str(free_port())
    with ServerProcess("memory://", env={"ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8"}) as server:
        made = json.loads(run_command(create.replace("9999", port), server))
        words = listen.replace("9999", port).replace("whsec_...", made["secret"]).split()[1:]
        command = [sys.executable, "-m", "zaqar_lite", *words, "--count", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as receiver:
            try:
                wait_until(lambda: listens(int(port)), [], timeout=60)
                run_command("zaqar-lite message post orders 7", server)
                shown, _ = receiver.communicate(timeout=60)
            finally:
                receiver.kill()
    came = json.loads(shown)
    assert (came["verified"], came["body"]["body"]) == (True, 7)


@pytest.mark.parametrize("driver", DRIVERS, ids=[driver.name for driver in DRIVERS])
def test_every_store_is_named(driver: Driver) -> None:
    readme = README.read_text(encoding="utf-8")
    for scheme in driver.schemes:
        assert f"`{scheme}://" in readme, scheme


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).is_file()]


@pytest.mark.skipif(
    not os.environ.get("ZAQAR_TEST_ALL"), reason="installs the server anew: tests/run --all"
)
def test_the_first_command_makes_an_environment_and_a_server(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    run_program(["git", "clone", "--quiet", ROOT, checkout], check=True)
    line = commands(README)[0].replace("zaqar-lite serve", "zaqar-lite serve --help")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = run_program(["bash", "-c", line], cwd=checkout, env=env)
    assert finished.returncode == 0, finished.stderr
    assert "--trust-headers" in finished.stdout
