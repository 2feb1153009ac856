"""Settling single messages by the command line, and what it tells of attempts."""

import time

from tests.client.test_waiting import post_later
from tests.commands.conftest import Shown
from tests.commands.running import Run
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
    assert "does not exist" in rows[1]["reason"]
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


def test_a_queue_without_dead_letters_says_so(run: Run, client: Client, queue: str) -> None:
    claim, (first,) = claimed(client, queue, 1)
    code, (row,) = run("message", "dead", queue, first, "--claim", claim)
    assert code == 1
    assert "no _dead_letter_queue" in row["reason"]


def test_a_terminal_gets_the_attempts_as_a_table(shown: Shown, client: Client, queue: str) -> None:
    client.create_queue(queue, QueueOptions(dead_letter_queue=f"{queue}-dead", max_failures=2))
    identifier = client.post(queue, "poison")
    for _ in range(2):
        with client.claim(queue) as claim:
            for message in claim:
                what = "\x1b[2Jwhat\nthere is"
                claim.release(message, failed=True, reason="KeyError", detail=what)
    for noun in ("dlq", "message"):
        table = shown(noun, "show", f"{queue}-dead", identifier)
        lines = table.splitlines()
        (header,) = (line for line in lines if "outcome" in line and "client_id" in line)
        for column in ("number", "ended_at", "delay", "reason", "detail"):
            assert column in header
        assert sum("KeyError" in line for line in lines) == 2
        assert "max_failures" in table
        assert "\\x1b[2Jwhat\\nthere is" in table
    fresh = client.post(queue, 1)
    assert "No attempt has ended yet." in shown("message", "show", queue, fresh)
    assert "max_failures" in shown("dlq", "list", f"{queue}-dead")


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
