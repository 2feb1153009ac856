"""`claim run` and `message tail`: a command for each message, and a queue as it grows."""

import json
import subprocess
import sys
from pathlib import Path

from tests.commands.running import ZAQAR, Run
from tests.server import ServerProcess
from zaqar_lite.client import Client, QueueOptions

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


def test_a_command_is_needed(run: Run, queue: str) -> None:
    assert run("claim", "run", queue)[0] == 2


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
