"""What a person at a terminal sees."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path

from tests.commands.conftest import Shown
from tests.commands.running import ZAQAR, on_a_terminal
from tests.record_terminal import COMMANDS, PICTURE, picture, session, text_of
from tests.server import ServerProcess
from tests.services.process import free_port
from zaqar_lite.client import Client, Topic


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


def test_no_id_and_no_name_is_cut(shown: Shown, queue: str, client: Client) -> None:
    ids = client.post_batch(queue, ["x" * 300, {"long": "y " * 100}])
    for words in (["message", "list", queue, "--details"], ["claim", "create", queue]):
        table = shown(*words, columns=80)
        lines = [line.rstrip() for line in table.splitlines()]
        assert all(any(one in line for line in lines) for one in ids)
        assert max(map(len, lines)) <= 80
        assert table.count("x") >= 300
        assert "\u2026" not in table
    narrow = shown("message", "show", queue, *ids, columns=30)
    assert all(one in narrow for one in ids)
    assert "\u2026" not in shown("health", columns=20)
    name = f"{queue}-".ljust(64, "n")
    assert name in shown("watch", name, "--count", "1", columns=110)
    narrow = shown("watch", name, "--count", "1", columns=60)
    assert "\u2026" not in narrow
    assert name in "".join(
        line.split("│")[2].strip() for line in narrow.splitlines() if "│" in line
    )


def test_a_narrow_terminal_shows_a_row_by_its_fields(
    shown: Shown, queue: str, client: Client
) -> None:
    ids = client.post_batch(queue, [{"text": "of some length"}, 2])
    rows = shown("message", "list", queue, "--details", columns=60)
    assert all(f"{one} " in rows for one in ids)
    fields = [line.split("│")[1].strip() for line in rows.splitlines() if "│" in line]
    assert fields[:4] == ["id", "age", "ttl", "body"]
    assert "claim_count" in rows


def test_nothing_is_a_line_that_says_what_there_is_instead(
    shown: Shown, queue: str, client: Client
) -> None:
    missing = f"{queue}-misspelled"
    client.create_queue(queue, {"_default_message_delay": 60})
    client.create_topic(queue)
    client.post_batch(queue, [1, 2])
    for words, delayed, absent in (
        ("message list", f"No messages to show in {queue}", f"No messages to show in {missing}"),
        ("claim create", f"No message of {queue} can be claimed now", "can be claimed now"),
        ("message pop", f"{queue} has nothing to take", f"{missing} has nothing to take"),
    ):
        there = shown(*words.split(), queue)
        assert f"{delayed}; 2 are delayed (zaqar-lite message list" in there
        assert "here is no" not in there
        assert f"{absent}: there is no queue of this name." in shown(*words.split(), missing)
    for words, absent in (
        ("queue stats", f"There is no queue {missing}."),
        ("queue show", f"There is no queue {missing}: these are the server's defaults."),
        ("topic show", f"There is no topic {missing}: these are the server's defaults."),
    ):
        assert absent in shown(*words.split(), missing)
        assert "here is no" not in shown(*words.split(), queue)
    assert "until" in shown("queue", "ranges", queue, "2")
    found = shown("queue", "list", "--name", "zzz")
    assert "The project has no queues with 'zzz' in their name." in found


def test_a_post_to_a_topic_without_subscribers_says_that_nobody_gets_it(
    shown: Shown, queue: str, client: Client
) -> None:
    nobody = f"Nobody subscribes to {queue}: the message went nowhere."
    assert nobody in shown("topic", "post", queue, "1")
    client.subscribe(Topic(queue), f"queue:{queue}-target")
    assert nobody not in shown("topic", "post", queue, "1")


def test_what_a_job_refused_is_said_in_words(shown: Shown, queue: str) -> None:
    said = shown("message", "move", queue, "0" * 32, "--by", "5m", code=3)
    assert "1 refused: there are no such messages (any more)" in said


def test_a_terminal_gets_a_progress_bar(shown: Shown, queue: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("1\n" * 5000, encoding="utf-8")
    words = ("message", "post", queue, "--file", str(source))
    assert "10.0/10.0 kB" in shown(*words)
    assert "4999" in shown(*words, "--format", "csv", "--body-column", "1", "--dry-run")


def test_what_a_server_is_not_set_to_do_is_said(tmp_path: Path) -> None:
    with ServerProcess(f"embedded://{tmp_path}/data") as plain:
        shown = on_a_terminal([*ZAQAR, "queue", "history", "q", "--url", plain.url])
        assert "No done messages of q are kept (for how long, _done_retention says)." in shown
        words = [*ZAQAR, "health", "--operations", "--url", plain.url]
        assert "it needs `serve --admin-mode`" in on_a_terminal(words, code=1)


def test_a_server_that_is_away_is_told_at_once_and_then_counted_down_to() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    words = [*ZAQAR, "queue", "list", "--url", url, "--attempts", "3"]
    shown = on_a_terminal(words, code=4)
    assert shown.count(f"No connection to {url}: Connection refused") == 2  # at once, and the end
    assert "trying again (" in shown  # a busy machine may be late for one of the countdowns
    assert " of 3) in 1s" in shown
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode == 4
    assert all(line.startswith("zaqar-lite: ") for line in done.stderr.splitlines())


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
        done = subprocess.run(twice, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        server.kill()
        done = subprocess.run(twice, capture_output=True, check=False, text=True)
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
