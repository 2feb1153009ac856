"""Commands that work on single messages: each, tail, and settling."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.client.test_waiting import post_later
from tests.commands.running import ZAQAR, Run
from tests.server import ServerProcess
from zaqar_lite.client import Client, QueueOptions


def claimed(client: Client, queue: str, *bodies: object) -> tuple[str, list[str]]:
    """Post messages and claim them; return the claim's id and theirs."""
    client.post_batch(queue, bodies)
    held = client.create_claim(queue)
    assert held is not None
    return held.id, [message.id for message in held.messages]


def test_messages_are_released_extended_and_sent_to_the_dead_letters(
    run: Run, client: Client, queue: str
) -> None:
    client.create_queue(queue, QueueOptions(dead_letter_queue=f"{queue}-dead"))
    claim, (first, second, third) = claimed(client, queue, 1, 2, 3)
    words: tuple[str, ...] = ("message", "release", queue, first, "--claim", claim)
    why = ("--failed", "--reason", "http_503", "--detail", "upstream is down", "--delay", "10m")
    assert run(*words, *why) == (0, [{"id": first, "released": True}])
    words = ("message", "extend", queue, second, "--claim", claim, "--ttl", "1h")
    assert run(*words) == (0, [{"id": second, "extended": True}])
    words = ("message", "dead", queue, third, "0" * 32, "--claim", claim, "--reason", "bad_format")
    code, rows = run(*words)
    assert (code, rows[0]) == (1, {"id": third, "dead": True})
    assert rows[1]["reason"] == "no such message"
    assert run("message", "dead", queue, "0" * 32, "--claim", claim)[0] == 3
    assert run("message", "extend", queue, first, "--claim", claim)[0] == 1  # given back before
    assert run("message", "release", queue, second)[0] == 2
    _, (shown,) = run("message", "show", queue, first)
    assert (shown["failure_count"], shown["attempts"][0]["reason"]) == (1, "http_503")
    assert shown["attempts"][0]["detail"] == "upstream is down"
    assert shown["parked_until"].endswith("Z")
    _, (letter,) = run("dlq", "list", f"{queue}-dead")
    assert (letter["source"], letter["reason"]) == (queue, "bad_format")
    _, (letter,) = run("dlq", "show", f"{queue}-dead", third)
    assert [one["outcome"] for one in letter["attempts"]] == ["dead"]
    assert run("dlq", "show", f"{queue}-dead", "0" * 32)[0] == 3
    assert run("claim", "release", queue, claim, "--delay", "5m")[0] == 0
    assert client.stats(queue).delayed == 2


def test_commands_wait_for_messages(
    run: Run, server: ServerProcess, client: Client, queue: str
) -> None:
    begin = time.monotonic()
    assert run("message", "pop", queue, "--wait", "1s") == (0, [])
    assert time.monotonic() - begin >= 1
    posting = post_later(server.url, queue, 1, 2)
    _, rows = run("claim", "create", queue, "--limit", "1", "--wait", "30s")
    assert [row["body"] for row in rows] == [1]
    posting.join()
    assert [row["body"] for row in run("message", "list", queue, "--wait", "1s")[1]] == [2]


PROGRAM = """
import json, os, sys
body = json.load(sys.stdin)
names = [os.environ[name] for name in ("MESSAGE_QUEUE", "MESSAGE_ID")]
print(*names, body, sys.argv[1:], file=open({log!r}, "a"))
sys.exit(body["code"])
"""


def test_a_command_runs_for_each_message_and_its_exit_code_settles_it(
    run: Run, client: Client, queue: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(log=str(log)))
    client.create_queue(queue, QueueOptions(max_failures=2, dead_letter_queue=f"{queue}-dead"))
    done, rejected, failed = client.post_batch(queue, [{"code": 0}, {"code": 65}, {"code": 3}])
    words = [sys.executable, str(program), "--flag", "-x"]
    code, rows = run("claim", "run", queue, "--until-empty", "--", *words)
    assert code == 1
    assert rows == [{"queue": queue, "processed": 1, "failed": 3, "lost": 0}]
    lines = log.read_text().splitlines()
    assert [line.split()[:2] for line in lines].count([queue, failed]) == 2
    assert f"{queue} {done} {{'code': 0}} ['--flag', '-x']" in lines
    reasons = {
        letter.id: [attempt.reason for attempt in letter.attempts or ()]
        for letter in client.list_dead_letters(f"{queue}-dead")
    }
    assert reasons == {rejected: ["exit_65"], failed: ["exit_3", "exit_3"]}
    assert client.stats(queue).total == 0


def test_a_command_that_takes_too_long_is_killed(run: Run, client: Client, queue: str) -> None:
    client.create_queue(queue, QueueOptions(max_failures=1, dead_letter_queue=f"{queue}-dead"))
    client.post(queue, 1)
    limit = ["--time-limit", "200ms", "--until-empty"]
    assert run("claim", "run", queue, *limit, "--", "sleep", "60")[0] == 1
    (letter,) = client.list_dead_letters(f"{queue}-dead")
    assert [attempt.reason for attempt in letter.attempts or ()] == ["time_limit"]


def test_tail_shows_what_comes_and_from_the_start_what_was_there(
    run: Run, server: ServerProcess, client: Client, queue: str
) -> None:
    client.post_batch(queue, [1, 2])
    _, rows = run("message", "tail", queue, "--from-start", "--count", "2")
    assert [row["body"] for row in rows] == [1, 2]
    words = [*ZAQAR, "message", "tail", queue, "--count", "1", "--url", server.url]
    with subprocess.Popen([*words, "--project", "tests"], stdout=subprocess.PIPE) as tailing:
        seen = None
        for number in range(3, 300):
            client.post(queue, number)
            try:
                printed, _ = tailing.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            seen = json.loads(printed)["body"]
            break
        assert tailing.returncode == 0
    assert isinstance(seen, int)
    assert seen >= 3
