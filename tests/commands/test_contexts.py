"""Files and contexts: queues that are declared, and servers that have names."""

import re
import stat
from pathlib import Path

import pytest

from tests.commands.running import Run
from tests.server import ServerProcess
from zaqar_lite.client import Client
from zaqar_lite.commands import contexts
from zaqar_lite.commands import queue as queue_commands
from zaqar_lite.commands.argument_types import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "zaqar-lite" / "contexts.json"


def test_contexts_are_added_listed_chosen_and_removed(run: Run, home: Path) -> None:
    assert run("context", "list") == (0, [])
    prod = ["--url", "http://prod:8888", "--project", "shop"]
    assert run("context", "add", "prod", *prod)[0] == 0
    assert run("context", "add", "test", "--url", "http://test:8888")[0] == 0
    _, rows = run("context", "use", "test")
    assert rows == [{"name": "test", "current": True, "url": "http://test:8888"}]
    _, rows = run("context", "list")
    assert [(row["name"], row["current"]) for row in rows] == [("prod", False), ("test", True)]
    assert rows[0]["project"] == "shop"
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert run("context", "remove", "test")[0] == 0
    left = contexts.load()
    assert (left.named, left.current) == (
        {"prod": {"url": "http://prod:8888", "project": "shop"}},
        None,
    )
    assert run("context", "use", "test")[0] == 3


def test_a_command_goes_where_its_context_says(
    run: Run, server: ServerProcess, client: Client, queue: str
) -> None:
    client.post(queue, 1)
    run("context", "add", "away", "--url", "http://127.0.0.1:1")
    run("context", "add", "here", "--url", server.url, "--project", "tests")
    # The environment says where the server is, so only a context that is asked for counts.
    away = "http://127.0.0.1:1"
    words = ["queue", "stats", queue, "--attempts", "1"]
    assert run(*words, url=away)[0] == 4
    code, rows = run("--context", "here", *words, url=away)
    assert (code, rows[0]["total"]) == (0, 1)
    # Without the environment the current one does; an option goes before all of them.
    assert run(*words, url="")[0] == 4
    run("context", "use", "here")
    assert run(*words, url="")[1][0]["total"] == 1
    assert run(*words, "--url", away, url="")[0] == 4
    assert run(*words, "--context", "nowhere")[0] == 2


def test_a_context_holds_a_key_or_the_name_of_its_variable(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "admin.key"
    options = ("--auth", "keys", "--admin-key-file", str(file))
    with ServerProcess("memory://", *options).start(ready=401) as server:
        admin = file.read_text().strip()
        words = ("queue", "create")
        add = ("context", "add", "ours", "--url", server.url)
        _, (row,) = run(*add, "--key", "-", stdin=admin.encode())
        assert row["key"] == f"{admin.rpartition('_')[0]}_..."
        assert stat.S_IMODE(home.stat().st_mode) == 0o600
        assert run(*words, "one", url="")[0] == 0
        # A key that is asked for goes before that of the context in use, as everything does.
        assert run(*words, "two", "--access-key", f"{admin[:-1]}x", url="")[0] == 1
        monkeypatch.setenv("ZAQAR_LITE_KEY", f"{admin[:-1]}x")
        assert run(*words, "two", url="")[0] == 1
        assert run("--context", "ours", *words, "two", url="")[0] == 0
        monkeypatch.delenv("ZAQAR_LITE_KEY")
        # It is for the context's own server, whatever else is named.
        assert run(*words, "two", "--url", f"{server.url}/")[0] == 1
        _, (row,) = run(*add, "--key-env", "OUR_KEY")
        assert (row["key_env"], "key" in row) == ("OUR_KEY", False)
        assert admin not in home.read_text()
        assert run(*words, "three", url="")[0] == 2
        monkeypatch.setenv("OUR_KEY", admin)
        assert run(*words, "three", url="")[0] == 0
        assert run(*add, "--key-env", "A", "--key", "B")[0] == 2


def test_a_broken_file_is_told_in_one_line(run: Run, home: Path) -> None:
    home.parent.mkdir()
    for broken in (b"{", b"\xff"):
        home.write_bytes(broken)
        assert run("context", "list")[0] == 2
        assert "mend it, or remove it" in run.said


DECLARED = """
queues:
  {queue}:
    message_ttl: 2h
    max_failures: 5
    retry_backoff: {{type: linear, min: 1, max: 60}}
    dead_letter_queue: {queue}-dead
    metadata: {{team: shop}}
  {queue}-dead: {{}}
"""


def test_a_file_makes_and_changes_queues_and_says_what_first(
    run: Run, client: Client, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(DECLARED.format(queue=queue))
    code, rows = run("queue", "apply", str(file), "--dry-run")
    assert (code, {row["act"] for row in rows}) == (0, {"create"})
    assert not client.queue_exists(queue)
    assert run("queue", "apply", str(file)) == (0, rows)
    metadata = client.get_queue(queue)
    assert (metadata["_default_message_ttl"], metadata["_max_failures"]) == (7200, 5)
    assert metadata["team"] == "shop"
    assert client.queue_exists(f"{queue}-dead")
    assert run("queue", "apply", str(file)) == (0, [])

    client.update_queue(queue, {"_max_failures": 2, "own": 1})
    code, rows = run("queue", "apply", str(file))
    assert rows == [
        {"queue": queue, "act": "change", "key": "_max_failures", "now": 2, "wanted": 5}
    ]
    assert client.get_queue(queue)["_max_failures"] == 5
    assert client.get_queue(queue)["own"] == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("queues: [1]", "an object of queues"),
        ("queues: {q: 3}", "must be an object"),
        ("queues: {on: {}}", "put it in quotes"),  # which is True in YAML
        ("queues: {q: {max_failure: 3}}", "'max_failure' of q is not an option"),
        ("queues: {q: {delay: soon}}", "a duration such as"),
        ("{", "neither YAML nor JSON"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(word)):
        queue_commands.read(str(file))
