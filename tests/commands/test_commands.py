"""The command line as a user runs it: a process, a pipe, an exit code, a real server."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.faulty_server import GARBAGE, FaultyServer
from tests.commands.running import ZAQAR, Run
from tests.server import ServerProcess
from tests.services.process import free_port, run_program
from zaqar_lite import __version__, cli
from zaqar_lite.client import Client
from zaqar_lite.durations import duration_shown


def test_a_queue_from_making_to_deleting(run: Run, queue: str) -> None:
    words = ("queue", "create", queue, "team=a", 'tags=["x"]', "--delay", "30s")
    assert run(*words) == (0, [{"queue": queue, "created": True}])
    assert run(*words) == (0, [{"queue": queue, "created": False}])
    assert run("queue", "create", queue)[1][0]["created"] is False
    assert run("queue", "create", queue, "team=b")[0] == 1
    _, (shown,) = run("queue", "show", queue)
    assert (shown["team"], shown["tags"], shown["_default_message_delay"]) == ("a", ["x"], 30)
    limits = ("--max-claims", "3", "--max-failures", "2", "--dead-letter-queue", f"{queue}-dead")
    (changed,) = run("queue", "set", queue, *limits)[1]
    assert (changed["_max_claim_count"], changed["_max_failures"]) == (3, 2)
    assert "team" not in run("queue", "unset", queue, "team")[1][0]
    assert {"name": queue} in [{"name": row["name"]} for row in run("queue", "list")[1]]
    run("message", "post", queue, "1", "2")
    assert run("queue", "stats", queue)[1][0]["delayed"] == 2
    assert run("queue", "purge", queue, "--dry-run")[1][0]["messages"] == 2
    assert run("queue", "stats", queue)[1][0]["total"] == 2
    assert run("queue", "purge", queue)[0] == 2
    assert run("queue", "purge", queue, "--yes")[1][0]["messages"] == 2
    assert run("queue", "delete", queue, "--dry-run")[1][0]["deleted"] is False
    assert run("queue", "delete", queue, "--yes")[1][0]["deleted"] is True
    assert run("queue", "delete", queue, "--yes") == (3, [])
    assert run("queue", "purge", queue, "--yes") == (3, [])
    assert run("queue", "set", queue, "a=1")[0] == 3


def test_a_message_from_posting_to_deleting(run: Run, queue: str, client: Client) -> None:
    code, rows = run("message", "post", queue, '{"a": 1}', "-.5", "--header", "trace=t")
    assert code == 0
    ids = [row["id"] for row in rows]
    _, listed = run("message", "list", queue, "--details")
    assert [row["body"] for row in listed] == [{"a": 1}, "-.5"]
    assert listed[0]["headers"] == {"trace": "t"}
    assert listed[0]["created"].endswith("Z")
    assert run("message", "list", queue, "--limit", "1")[1][0]["id"] == ids[0]
    assert run("message", "show", queue, *ids)[1][1]["body"] == "-.5"
    assert run("message", "show", queue, "0" * 32)[0] == 3
    assert run("message", "delete", queue, *ids)[0] == 2
    _, claimed = run("claim", "create", queue, "--limit", "1")
    claim = claimed[0]["claim_id"]
    assert run("claim", "show", queue, claim)[1][0]["id"] == ids[0]
    stays = {"id": ids[0], "cancelled": False, "reason": "somebody holds it"}
    assert run("message", "cancel", queue, ids[0]) == (1, [stays])
    assert run("claim", "renew", queue, claim, "--ttl", "90")[0] == 0
    assert run("message", "delete", queue, ids[1], "--claim", claim)[0] == 3
    gone = {"id": ids[0], "deleted": True}
    assert run("message", "delete", queue, ids[0], "--claim", claim) == (0, [gone])
    # It ended with its last message.
    assert run("claim", "release", queue, claim) == (3, [])
    assert run("claim", "renew", queue, claim)[0] == 3
    assert run("message", "pop", queue)[1][0]["body"] == "-.5"
    assert client.stats(queue).total == 0
    for _ in range(2):
        assert run("message", "post", queue, "once", "--key", "order-7")[0] == 0
    assert client.stats(queue).total == 1
    assert run("message", "post", queue, "a", "b", "--key", "k")[0] == 2


def test_only_what_was_there_is_said_to_be_gone(run: Run, queue: str) -> None:
    _, (first, second) = run("message", "post", queue, "1", "2")
    absent = {"id": "0" * 32, "reason": "no such message"}
    rows = [{**first, "deleted": True}, {**absent, "deleted": False}]
    words = ("message", "delete", queue, first["id"], "--force")
    assert run(*words, absent["id"]) == (1, rows)
    assert run(*words)[0] == 3
    taken_back = {**second, "cancelled": True}
    assert run("message", "cancel", queue, second["id"]) == (0, [taken_back])
    assert run("message", "cancel", queue, absent["id"]) == (3, [{**absent, "cancelled": False}])
    _, (held) = run("claim", "create", queue)
    assert held == []
    run("message", "post", queue, "3")
    claim = run("claim", "create", queue)[1][0]["claim_id"]
    released = run("claim", "release", queue, claim)
    assert released == (0, [{"claim": claim, "released": True}])
    assert run("claim", "release", queue, claim) == (3, [])


def test_delayed_messages_are_edited_and_cancelled(run: Run, queue: str) -> None:
    run("queue", "create", queue, "--delay", "300")
    _, ((first), (second)) = run("message", "post", queue, "draft", "no")
    assert run("message", "edit", queue, first["id"], "--body", "[1]")[1][0]["body"] == [1]
    assert run("message", "edit", queue, first["id"])[0] == 2
    assert run("message", "cancel", queue, second["id"])[0] == 0
    assert run("message", "list", queue)[1] == []
    assert len(run("message", "list", queue, "--include-delayed")[1]) == 1
    at = "2000-01-01T00:00:00Z"
    _, ((ready),) = run("message", "post", queue, "old", "--deliver-at", at)
    assert run("message", "edit", queue, ready["id"], "--delay", "5")[0] == 1


def test_dead_letters_are_listed_counted_and_moved_back(
    run: Run, queue: str, client: Client
) -> None:
    dead = f"{queue}-dead"
    run("queue", "create", dead)
    run("queue", "create", queue, "--max-claims", "1", "--dead-letter-queue", dead)
    run("message", "post", queue, '{"k": {"n": 1}}', '{"k": {"n": 2}}')
    for _ in range(2):
        _, held = run("claim", "create", queue)
        if held:
            run("claim", "release", queue, held[0]["claim_id"])
    _, letters = run("dlq", "list", dead)
    assert [(row["source"], row["claims"]) for row in letters] == [(queue, 1)] * 2
    assert run("dlq", "count", dead)[1][0]["letters"] == 2
    words = ("dlq", "redrive", dead, "--where", "k.n=2")
    dry = run(*words, "--dry-run")[1][0]
    assert (dry["moved"], dry["passed_over"], dry["dry_run"]) == ({queue: 1}, 1, True)
    assert client.stats(dead).total == 2
    assert run(*words)[1][0]["moved"] == {queue: 1}
    (back,) = client.list_messages(queue)
    assert (back.id, back.body) == (letters[1]["id"], {"k": {"n": 2}})
    assert run(*words, "--where", "k.n=1")[0] == 2
    run("message", "post", dead, "homeless")
    assert run("dlq", "redrive", dead)[0] == 1


def test_a_shared_permission_is_used_from_its_file(run: Run, queue: str, tmp_path: Path) -> None:
    run("message", "post", queue, "1")
    _, (signed,) = run("share", queue, "--lasts", "1h")
    file = tmp_path / "signed.json"
    file.write_text(json.dumps(signed), encoding="utf-8")
    assert run("message", "list", queue, "--signed", str(file), "--project", "x")[1][0]["body"] == 1
    assert run("message", "post", queue, "2", "--signed", str(file))[0] == 3
    assert run("unshare", f"{queue}s") == (3, [])
    assert run("unshare", queue) == (0, [{"queue": queue, "revoked": True}])
    assert run("message", "list", queue, "--signed", str(file), "--project", "x")[0] == 3


def test_health_tells_by_its_exit_code(run: Run, queue: str) -> None:
    assert run("health")[1][0]["up"] is True
    code, operations = run("health", "--operations")
    assert code == 0
    assert {row["operation"] for row in operations} >= {"post_messages", "claim_messages"}
    assert run("health", url=f"http://127.0.0.1:{free_port()}")[0] == 4
    with FaultyServer() as proxy:  # whose pages are not Zaqar's
        for fault, code in (((502, {}), 4), (GARBAGE, 1)):
            proxy.script.append(fault)
            assert run("queue", "show", queue, "--attempts", "1", url=proxy.url)[0] == code
            assert len(run.said.splitlines()) == 1


def test_watching_a_project_shows_the_worst_first(run: Run, queue: str) -> None:
    def watched(*words: str) -> list[str]:
        code, rows = run("watch", "--count", "1", "--project", queue, *words)
        assert code == 0
        return [row["queue"] for row in rows]

    assert watched() == []
    for name in ("calm", "busy", "failing", "failing-dead"):
        dead = ("--dead-letter-queue", "failing-dead") if name == "failing" else ()
        run("queue", "create", name, *dead, "--project", queue)
    run("message", "post", "failing-dead", "1", "--project", queue)
    run("message", "post", "busy", "1", "2", "3", "--project", queue)
    assert watched()[0] == "failing"
    assert watched()[-1] == "calm"
    assert watched("--search", "ready>2") == ["busy"]
    assert watched("--search", "fail dead>0") == ["failing"]
    assert watched("--search", "oldest>1h") == []
    assert len(watched("--top", "2")) == 2
    assert watched("calm", "busy") == ["calm", "busy"]
    assert run("watch", "--count", "1", "--search", "ready>many")[0] == 2


def test_durations_are_written_as_people_do(run: Run, queue: str, client: Client) -> None:
    run("queue", "create", queue, "--ttl", "1h30m", "--delay", "5m", "--max-claims", "3")
    found = client.get_queue(queue)
    assert (found["_default_message_ttl"], found["_default_message_delay"]) == (5400, 300)
    _, (posted,) = run("message", "post", queue, "1", "--ttl", "2d", "--delay", "0")
    assert client.get_message(queue, posted["id"]).ttl == 172_800
    _, (held,) = run("claim", "create", queue, "--ttl", "90", "--grace", "2m")
    assert client.get_claim(queue, held["claim_id"]).ttl == 90
    rows = b"body,ttl\na,1h\n"
    assert run("message", "post", queue, "--file", "-", "--format", "csv", stdin=rows)[0] == 0
    for wrong in ("1 h", "h", "1x", "-5", "0.5s", "nan", ""):
        assert run("message", "post", queue, "1", "--ttl", wrong) == (2, [])
    shown = {0: "0s", 0.5: "0.5s", 59: "59s", 3541: "59m1s", 3600: "1h", 86_460: "1d"}
    assert {seconds: duration_shown(seconds) for seconds in shown} == shown


def test_options_may_stand_before_the_command(run: Run, server: ServerProcess, queue: str) -> None:
    run("queue", "create", queue)
    url = ("--url", server.url)
    nobody = f"http://127.0.0.1:{free_port()}"
    for words in (
        (*url, "--json", "queue", "list", "--name", queue),
        (f"--url={server.url}", "queue", "--project", "tests", "list", "--name", queue),
        ("queue", *url, "--attempts", "1", "list", "--name", queue),
    ):
        assert run(*words, url=nobody) == (0, [{"name": queue, "href": f"/v2/queues/{queue}"}])
    assert run(*url, "message", "post", queue, "--", "--json", url=nobody)[0] == 0
    mixed = ("message", "post", "--ttl", "60", queue, "--text", "1", "--header", "a=b", "2")
    assert len(run(*mixed)[1]) == 2
    assert run(*url, "health", url=nobody)[0] == 0
    assert run(*url, url=nobody)[0] == 2
    assert run("--nonsense", "health")[0] == 2
    assert run("queue", "list", "--os-cloud", "no-such-cloud")[0] == 1


def test_the_package_is_a_command_and_says_its_version() -> None:
    words = [sys.executable, "-m", "zaqar_lite", "--version"]
    done = run_program(words, check=True)
    assert done.stdout == f"zaqar-lite {__version__}\n"


def test_a_reader_that_goes_away_is_no_traceback(
    run: Run, server: ServerProcess, queue: str, client: Client
) -> None:
    client.post_all(queue, ("x" * 500 for _ in range(2000)))
    words = [*ZAQAR, "message", "list", queue, "--url", server.url, "--project", "tests"]
    piped = '"$@" | head -1 > /dev/null; exit "${PIPESTATUS[0]}"'
    done = run_program(["bash", "-c", piped, "bash", *words])
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "zaqar-lite" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, check=True, text=True)


PATIENT = """
import sys
from zaqar_lite.cli import main
from zaqar_lite.commands import completion
completion._SECONDS = 60.0
sys.exit(main(sys.argv[1:]))
"""
COMPLETING = """
zaqar-lite() { "$PYTHON" -c "$PROGRAM" "$@"; }
. "$SCRIPT"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete zaqar-lite
printf '%s\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_commands_options_and_the_queues_of_the_server_that_the_line_names(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    project = f"completing-{queue}"
    script = tmp_path / "completion.bash"
    with script.open("w") as written:
        subprocess.run([*ZAQAR, "completion", "bash"], stdout=written, check=True)

    def completed(line: str) -> list[str]:
        given = {"PYTHON": sys.executable, "PROGRAM": PATIENT, "SCRIPT": str(script)}
        words = ["bash", "-c", COMPLETING, "bash", line]
        return run_program(words, env={**os.environ, **given}, check=True).stdout.split()

    where = f"--url {server.url} --project={project}"
    many = [f"names-{number:02}" for number in range(23)]  # more than a page
    with Client(server.url, project=project) as client:
        for name in ("jobs", "jobs-failed", "mails", *many):
            client.create_queue(name)
    assert completed("zaqar-lite q") == ["queue", "quota"]
    assert completed("zaqar-lite queue st") == ["stats"]
    hidden = ["--include-claimed", "--include-delayed"]
    assert completed("zaqar-lite message list jobs --incl") == hidden
    assert completed("zaqar-lite message post jobs --format c") == ["csv"]
    assert completed(f"zaqar-lite queue stats {where} jo") == ["jobs", "jobs-failed"]
    assert completed(f"zaqar-lite queue stats {where} na") == many
    assert completed(f"zaqar-lite {where} message post m") == ["mails"]
    assert completed(f"zaqar-lite dlq redrive jobs {where} --to jobs-") == ["jobs-failed"]
    assert completed(f"zaqar-lite queue show --url http://127.0.0.1:{free_port()} jo") == []


def test_help_imports_no_http_library_and_no_rich() -> None:
    program = (
        "import sys; from zaqar_lite.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "slow = {'rich', 'urllib3', 'aiohttp', 'httpx', 'fastapi', 'zaqar_lite.commands.listen'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    for words in (["--help"], ["message", "--help"], ["message", "post", "--help"]):
        done = run_program([sys.executable, "-c", program, *words], check=True)
        assert done.stdout.endswith("[]\n")
