"""Wrong words, wrong files and Ctrl-C: one line that says what is wrong, and the exit code."""

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.running import ZAQAR
from tests.server import ServerProcess
from tests.services.process import free_port, wait_until
from zaqar_lite import cli
from zaqar_lite.client import AsyncClient, Client, Forbidden
from zaqar_lite.commands.base_command import Verbs

Wrong = Callable[..., str]


@pytest.fixture
def here(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands of this process find the server."""
    monkeypatch.setenv("ZAQAR_LITE_URL", server.url)
    monkeypatch.setenv("ZAQAR_LITE_PROJECT", "tests")


@pytest.fixture
def wrong(here: None, capsys: pytest.CaptureFixture[str]) -> Wrong:
    """Run a command that must fail; return the one line that it prints."""

    def runner(*words: str, code: int = 2) -> str:
        try:
            ended = cli.main(words)
        except SystemExit as left:
            ended = int(left.code or 0)
        said = capsys.readouterr().err
        assert ended == code, said
        (line,) = said.splitlines()
        assert line.startswith("zaqar-lite")
        return line.partition(": ")[2]

    return runner


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mesage", "list"), "there is no command 'mesage': did you mean message? See"),
        (("message", "pots", "q"), "there is no verb 'pots': did you mean post? See"),
        (("dlq", "x"), "there is no verb 'x'; there are list, show, count, redrive; see"),
        (("message", "post", "q", "1", "--tll", "5"), "--tll: did you mean --ttl? See"),
        (("queue", "list", "--limit", "5"), "it has no option --limit; see zaqar-lite queue list"),
        (("serve", "--max-messages-per-page", "5"), "ZAQAR_LITE_MAX_MESSAGES_PER_PAGE"),
        (("message", "list", "q", "more"), "it takes no 'more'; see"),
        (("message", "post"), "the following arguments are required: queue, body; see"),
        (("message",), "the following arguments are required: VERB; see zaqar-lite message --help"),
        (("message", "list", "q", "--limit", "x"), "--limit: a whole number from 1 is needed"),
        (("message", "post", "q", "1", "--ttl", "5x"), "--ttl: a duration such as 30s, 5m, 1h"),
        (("message", "post", "q", "1", "--deliver-at", "soon"), "--deliver-at: a time such as"),
        (("message", "post", "q", "[" * 100_000), "it is nested too deeply"),
        (("listen", "--port", "0", "--secret", "whsec_..."), "The secret must be base64"),
        (("listen", "--port", "70000"), "--port: a whole number from 0 to 65535 is needed"),
        (("listen", "--port", "0", "--status", "99"), "--status: a whole number from 200 to 599"),
        (("queue", "set", "q"), "nothing to set: give KEY=VALUE, or an option such as"),
        (("message", "edit", "q", "1"), "nothing to change: give body, ttl, delay or"),
        (("message", "post", "q", '{"a": NaN}'), "a body can't hold NaN or an infinity"),
        (("message", "post", "q", "a\udcff"), "a body is not valid UTF-8"),
        (("message", "post", "q", "--file", "/no/file"), "/no/file: No such file or directory"),
        (("claim", "run", "q"), "the following arguments are required: COMMAND"),
        (("claim", "run", "q", "--", "/no/file"), "there is no program '/no/file' to run"),
        (("queue", "list", "--project", ""), "--project is empty: is the variable set that"),
        (("message", "post", "q", "--file", "-", "--rate", "0"), "--rate: a number above 0"),
        (("message", "post", "q"), "give bodies, or --file"),
        (("dlq", "redrive", "q", "--limit", "-1"), "--limit"),
        (("watch", "q", "--interval", "-1"), "--interval"),
        (("share", "q", "--lasts", "1e15"), "--lasts is beyond the end of the calendar"),
        (("health", "--timeout", "0"), "--timeout: a duration above 0"),
        (("queue", "show", ""), "the name of a queue is empty"),
        (("queue", "create", "q", "no-equals-sign"), "KEY=VALUE: a key, = and a value are needed"),
        (("queue", "list", "--ca-file", "/no/such/file"), "/no/such/file can't be read, or"),
        (("queue", "list", "--client-cert", __file__), "does not hold what TLS needs"),
        (("queue", "list", "--url", "localhost:8888"), "'localhost:8888' is not a server's addr"),
        (("queue", "list", "--url", "http://127.0.0.1:99999"), "is not a server's address"),
        (("bench", "--url", "localhost:8888"), "is not an address such as"),
        (("bench", "--post-url", "https://127.0.0.1"), "https"),
        (("bench", "--connections", "0"), "--connections"),
        (("bench", "--seconds", "nan"), "--seconds"),
        (("bench", "--scenario", "nothing"), "nothing"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line_before_the_server_is_asked(
    wrong: Wrong, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    # Nobody listens there: had the command asked, its exit code would be 4.
    monkeypatch.setenv("ZAQAR_LITE_URL", f"http://127.0.0.1:{free_port()}")
    assert says in wrong(*words)


def test_what_is_not_there_is_named(wrong: Wrong, queue: str) -> None:
    assert wrong("queue", "delete", queue, "--yes", code=3) == f"No such queue: {queue}"
    assert wrong("topic", "delete", queue, code=3) == f"No such topic: {queue}"
    assert wrong("schedule", "delete", "none", code=3)
    for words in (("subscription", "delete"), ("topic", "unsubscribe")):
        assert wrong(*words, queue, "0" * 32, code=3)
    assert "it needs `serve --pooling --admin-mode`" in wrong("pool", "list", code=3)
    assert "it needs `serve --auth keys`" in wrong("key", "list", code=3)
    assert "it needs the setting encryption_key_file" in wrong("data-key", "list", code=3)


def test_quotas_of_others_need_a_server_in_admin_mode(
    wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess("memory://") as server:
        monkeypatch.setenv("ZAQAR_LITE_URL", server.url)
        assert "it needs `serve --admin-mode`" in wrong("quota", "show", "other", code=3)


def test_a_file_that_holds_no_permission_is_refused(wrong: Wrong) -> None:
    said = wrong("queue", "list", "--signed", str(Path(__file__).with_name("__init__.py")))
    assert "prints, a JSON object of project, paths, methods, expires, signature" in said


@pytest.mark.usefixtures("here")
def test_a_body_that_was_meant_as_json_is_posted_with_a_warning(
    client: Client, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["message", "post", queue, '{"a":']) == 0
    assert '{"a": is not valid JSON and is posted as a string' in capsys.readouterr().err
    assert cli.main(["message", "post", queue, "--text", '{"a":']) == 0
    assert capsys.readouterr().err == ""
    assert [message.body for message in client.list_messages(queue)] == ['{"a":'] * 2


@pytest.mark.anyio
async def test_a_project_may_have_any_letters(server: ServerProcess, queue: str) -> None:
    with Client(server.url, project="größe-日本") as client:
        client.post(queue, 1)
        assert client.stats(queue).total == 1
    async with AsyncClient(server.url, project="größe-日本") as other:
        assert (await other.stats(queue)).total == 1


def test_a_server_without_tls_is_recognised(server: ServerProcess, wrong: Wrong) -> None:
    """It will not speak TLS at the next try either, so there is none."""
    there = ("--url", server.url.replace("http:", "https:"))
    commands = (
        ("queue", "list", *there),
        ("watch", *there),
        ("claim", "run", "q", *there, "--", "true"),
    )
    for words in commands:
        assert "it does not answer in TLS" in wrong(*words, code=4)


def test_an_address_that_is_not_the_servers_is_recognised(
    server: ServerProcess, wrong: Wrong
) -> None:
    """It seems to have no queues, and no server may have any under this path."""
    for words in (("queue", "list"), ("queue", "stats", "q"), ("message", "post", "q", "1")):
        said = wrong(*words, "--url", f"{server.url}/zaqar", code=3)
        assert "the server has no /v2/queues" in said
        assert "is its address right" in said


@pytest.mark.parametrize(
    "words",
    [
        ["message", "tail", "jobs"],
        ["message", "list", "jobs", "--wait", "60s"],
        ["message", "pop", "jobs", "--wait", "60s"],
        ["claim", "create", "jobs", "--wait", "60s"],
        ["watch", "jobs"],
    ],
)
def test_ctrl_c_ends_a_command_that_waits(
    server: ServerProcess, words: list[str], tmp_path: Path
) -> None:
    code, said = interrupted(server, words, tmp_path)
    assert code == 130
    assert "Traceback" not in said


def test_what_a_producer_sent_is_posted_while_it_pauses(
    server: ServerProcess, queue: str, client: Client, tmp_path: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    words = ["message", "post", queue, "--file", str(pipe), "--batch-size", "1"]
    with pipe.open("r+b", buffering=0) as producer:
        producer.write(b"1\n2\n")
        code, said = interrupted(server, words, tmp_path, lambda: client.stats(queue).total == 2)
    assert (code, "Traceback" in said) == (130, False)


def test_ctrl_c_gives_the_message_of_a_command_back(
    server: ServerProcess, queue: str, client: Client, tmp_path: Path
) -> None:
    client.post(queue, 1)
    begun = tmp_path / "begun"
    program = ["sh", "-c", f"touch {begun}; exec sleep 600"]
    code, _ = interrupted(server, ["claim", "run", queue, "--", *program], tmp_path, begun.exists)
    assert code == 130
    (message,) = client.list_messages(queue, details=True)
    assert not message.failure_count


def interrupted(
    server: ServerProcess, words: list[str], folder: Path, when: Callable[[], bool] | None = None
) -> tuple[int, str]:
    """Run a command, interrupt it as a terminal does, with all that it started; see its end."""
    log = folder / "said"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*ZAQAR, "--url", server.url, "--project", "tests", *words],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        with process:
            wait_until(when or (lambda: connections(process.pid) > 0), [], timeout=60)
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)
            try:
                code = process.wait(20)
            finally:
                process.kill()
    return code, log.read_text(encoding="utf-8")


def connections(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since
            found += "socket:" in str(one.readlink())
    return found


def test_who_may_delete_and_not_look_deletes_without_looking(server: ServerProcess) -> None:
    deleted: list[str] = []

    def find(_: Client, given: argparse.Namespace) -> None:
        raise Forbidden("Forbidden", given.name)

    parser = argparse.ArgumentParser()
    verbs = Verbs(parser.add_subparsers())
    verbs.delete("delete it", find, lambda _, given: deleted.append(given.name), "name")
    arguments = parser.parse_args(["delete", "one", "--url", server.url])
    assert arguments.run(arguments) == 0
    assert deleted == ["one"]
