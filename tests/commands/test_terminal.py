"""What a person at a terminal sees."""

import contextlib
import json
import signal
import subprocess

from tests.commands.conftest import Shown
from tests.commands.running import ZAQAR
from tests.record_terminal import COMMANDS, PICTURE, picture, session, text_of
from tests.server import ServerProcess
from tests.services.process import run_program
from zaqar_lite.client import Client


def test_a_terminal_gets_tables_that_a_body_cannot_command(
    shown: Shown, queue: str, client: Client
) -> None:
    client.post(queue, "[bold]\x1b[2Jred")
    table = shown("message", "list", queue)
    assert "body" in table
    assert "[bold]" in table
    assert "\\x1b[2Jred" in table
    assert "\x1b[2J" not in table
    watched = shown("watch", queue, "--interval", "0.05", "--count", "3")
    assert "claimed" in watched
    assert "delayed" in watched


def test_a_narrow_terminal_shows_a_row_by_its_fields_and_cuts_no_id(
    shown: Shown, queue: str, client: Client
) -> None:
    ids = client.post_batch(queue, [{"text": "of some length"}, "x" * 300])
    rows = shown("message", "list", queue, "--details", columns=60)
    assert all(f"{one} " in rows for one in ids)
    assert rows.count("x") >= 300
    fields = [line.split("│")[1].strip() for line in rows.splitlines() if "│" in line]
    assert fields[:4] == ["id", "age", "ttl", "body"]


def test_a_terminal_is_told_why_nothing_is_shown(shown: Shown, queue: str, client: Client) -> None:
    client.create_queue(queue, {"_default_message_delay": 600})
    client.post(queue, 1)
    hidden = f"1 is delayed (zaqar-lite message list {queue} --include-delayed)"
    assert hidden in shown("message", "list", queue)
    absent = shown("dlq", "count", f"{queue}-dead")
    assert absent == f"No dead letters in {queue}-dead: there is no queue of this name.\n"


def test_watching_goes_on_when_the_server_comes_back(queue: str) -> None:
    with ServerProcess("memory://") as server:
        words = [*ZAQAR, "watch", queue, "--interval", "50ms", "--url", server.url]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["ready"] == 0
            server.kill()
            assert process.stderr.readline().startswith("zaqar-lite: No ")
            server.start()
            # A connection that is reset and one that is refused are told in a line each.
            lines = iter(process.stderr.readline, "")
            assert "zaqar-lite: the server is back\n" in lines
            for _ in range(10):
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(6)
                    break
            words_at_the_end = process.stderr.read()
            assert process.returncode == 130, words_at_the_end
        twice = [*words, "--count", "2"]
        done = run_program(twice)
        assert done.returncode == 0, done.stderr
        server.kill()
        done = run_program(twice)
        assert done.returncode == 4, done.stderr


def test_the_readmes_picture_is_of_a_real_session() -> None:
    with ServerProcess("memory://") as server:
        drawn = text_of(picture(session(server.url)))
    assert "no_recipient" in drawn
    assert '{"mails": 1}' in drawn
    committed = text_of(PICTURE.read_text(encoding="utf-8"))
    assert committed.count("\n") == drawn.count("\n")
    for command in COMMANDS:
        assert f"$ {command}" in drawn
        assert f"$ {command}" in committed
