"""Queues from a file: `queue apply`."""

import re
from pathlib import Path

import pytest

from tests.commands.running import Run
from zaqar_lite.client import Client
from zaqar_lite.commands import queue as queue_commands
from zaqar_lite.commands.argument_types import UsageError

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
        ("queues: {}\nqueue: {}", "one key"),
        ("queues: {q: 3}", "must be an object"),
        ("queues: {q: {max_failure: 3}}", "'max_failure' of q is not an option"),
        ("queues: {q: {_max_failure: 3}}", "did you mean '_max_failures'"),
        ("queues: {q: {delay: soon}}", "a duration such as"),
        ("queues: {q: {metadata: 3}}", "q: "),
        ("{", "neither YAML nor JSON"),
        ("#" * 1_048_577, "more than"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(word)):
        queue_commands.read(str(file))
