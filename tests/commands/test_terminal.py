"""What a person at a terminal sees."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path

from tests.commands.running import ZAQAR, on_a_terminal
from tests.record_terminal import COMMANDS, PICTURE, picture, session, text_of
from tests.server import ServerProcess
from tests.services.process import free_port
from zaqar_lite.client import Client, Topic


def test_a_terminal_gets_tables_that_a_body_cannot_command(
    server: ServerProcess, queue: str, client: Client
) -> None:
    client.post(queue, "[bold]\x1b[2Jred")
    words = ["message", "list", queue, "--url", server.url, "--project", "tests"]
    shown = on_a_terminal([*ZAQAR, *words])
    assert "body" in shown
    assert "[bold]" in shown
    assert "\\x1b[2Jred" in shown
    assert "\x1b[2J" not in shown
    watched = on_a_terminal(
        [*ZAQAR, "watch", queue, "--interval", "0.05", "--count", "3", *words[3:]]
    )
    assert "claimed" in watched
    assert "delayed" in watched


def test_ids_are_never_cut(server: ServerProcess, queue: str, client: Client) -> None:
    ids = client.post_batch(queue, ["x" * 300, {"long": "y " * 100}])
    options = ["--url", server.url, "--project", "tests"]
    for words in (["message", "list", queue, "--details"], ["claim", "create", queue]):
        shown = on_a_terminal([*ZAQAR, *words, *options], columns=80)
        lines = [line.rstrip() for line in shown.splitlines()]
        assert all(any(one in line for line in lines) for one in ids)
        assert max(map(len, lines)) <= 80
        assert shown.count("x") >= 300
        assert "\u2026" not in shown
    (claim,) = {message.claim_id for message in client.list_messages(queue, include_claimed=True)}
    assert claim is None or claim in shown
    narrow = on_a_terminal([*ZAQAR, "message", "show", queue, *ids, *options], columns=30)
    assert all(one in narrow for one in ids)
    record = on_a_terminal([*ZAQAR, "health", *options], columns=20)
    assert "\u2026" not in record


def test_watching_cuts_no_name(server: ServerProcess, queue: str) -> None:
    name = f"{queue}-".ljust(64, "n")
    words = [*ZAQAR, "watch", name, "--count", "1", "--url", server.url]
    assert name in on_a_terminal(words, columns=110)
    narrow = on_a_terminal(words, columns=60)
    assert "\u2026" not in narrow
    assert name in "".join(
        line.split(maxsplit=1)[0] for line in narrow.splitlines() if line.split()
    )


def test_nothing_is_a_line_that_says_what_there_is_instead(
    server: ServerProcess, queue: str, client: Client
) -> None:
    options = ["--url", server.url, "--project", "tests"]
    client.create_queue(queue, {"_default_message_delay": 60})
    client.post_batch(queue, [1, 2])
    shown = on_a_terminal([*ZAQAR, "message", "list", queue, *options])
    assert f"No messages to show in {queue}; 2 are delayed (zaqar-lite message list" in shown
    shown = on_a_terminal([*ZAQAR, "claim", "create", queue, *options])
    assert f"No message of {queue} can be claimed now; 2 are delayed (zaqar-lite" in shown
    shown = on_a_terminal([*ZAQAR, "message", "pop", queue, *options])
    assert f"{queue} has nothing to take; 2 are delayed (zaqar-lite message list" in shown
    shown = on_a_terminal([*ZAQAR, "queue", "list", "--name", "zzz", *options])
    assert "The project has no queues with 'zzz' in their name." in shown


def test_a_queue_or_topic_that_nobody_made_is_told_from_an_empty_one(
    server: ServerProcess, queue: str, client: Client
) -> None:
    options = ["--url", server.url, "--project", "tests"]
    missing = f"{queue}-misspelled"
    defaults = f"There is no {{}} {missing}: these are the server's defaults."
    for words, said in (
        (("message", "list"), f"No messages to show in {missing}: there is no queue of this name."),
        (("claim", "create"), "can be claimed now: there is no queue of this name."),
        (("message", "pop"), f"{missing} has nothing to take: there is no queue of this name."),
        (("queue", "stats"), f"There is no queue {missing}."),
        (("queue", "show"), defaults.format("queue")),
        (("topic", "show"), defaults.format("topic")),
    ):
        assert said in on_a_terminal([*ZAQAR, *words, missing, *options])
    client.create_queue(queue)
    client.create_topic(queue)
    for words in (("queue", "show"), ("queue", "stats"), ("topic", "show"), ("message", "list")):
        assert "here is no" not in on_a_terminal([*ZAQAR, *words, queue, *options])


def test_a_post_to_a_topic_without_subscribers_says_that_nobody_gets_it(
    server: ServerProcess, queue: str, client: Client
) -> None:
    words = [*ZAQAR, "topic", "post", queue, "1", "--url", server.url, "--project", "tests"]
    nobody = f"Nobody subscribes to {queue}: the message went nowhere."
    assert nobody in on_a_terminal(words)
    client.subscribe(Topic(queue), f"queue:{queue}-target")
    assert nobody not in on_a_terminal(words)


def test_what_a_server_is_not_set_to_do_is_said(tmp_path: Path) -> None:
    with ServerProcess(f"embedded://{tmp_path}/data") as plain:
        shown = on_a_terminal([*ZAQAR, "queue", "history", "q", "--url", plain.url])
        assert "No done messages of q are kept (for how long, _done_retention says)." in shown
        words = [*ZAQAR, "health", "--operations", "--url", plain.url]
        assert "it needs `serve --admin-mode`" in on_a_terminal(words, code=1)


def test_what_a_job_refused_is_said_in_words(server: ServerProcess, queue: str) -> None:
    options = ["--by", "5m", "--url", server.url, "--project", "tests"]
    shown = on_a_terminal([*ZAQAR, "message", "move", queue, "0" * 32, *options], code=3)
    assert "1 refused: there are no such messages (any more)" in shown


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


def test_a_terminal_gets_a_progress_bar(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("1\n" * 5000, encoding="utf-8")
    words = ["message", "post", queue, "--file", str(source), "--url", server.url]
    assert "5,000 messages" in on_a_terminal([*ZAQAR, *words])
