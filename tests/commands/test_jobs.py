"""Jobs and schedules on the command line and in the SDK."""

import datetime as dt
from typing import Any

import pytest

from tests.commands.running import Run
from zaqar_lite.client import Client, DueChanged, NewMessage, NotFound


def run_one(run: Run, *words: str) -> tuple[int, Any]:
    """Run a command that prints one record; answer its exit code and that."""
    code, rows = run(*words)
    assert len(rows) == 1, (code, rows)
    (row,) = rows
    return code, row


def let_die(client: Client, queue: str, *bodies: Any) -> str:
    """Send messages to the dead letters; answer their queue."""
    client.create_queue(queue, {"_dead_letter_queue": f"{queue}-dead", "_max_failures": 1})
    client.post_batch(queue, bodies)
    with client.claim(queue, limit=20) as claim:
        for message in claim:
            claim.release(message, failed=True, reason="http_503")
    return f"{queue}-dead"


def test_a_filter_makes_a_job_that_is_followed(run: Run, client: Client, queue: str) -> None:
    dead = let_die(client, queue, *range(5))
    words = ("dlq", "redrive", dead, "--where", "reason = 'http_503'", "--watch")
    with_sample = run_one(run, *words, "--dry-run")
    assert (with_sample[0], with_sample[1]["selected"], with_sample[1]["done"]) == (0, 5, 0)
    assert len(with_sample[1]["sample"]) == 5
    code, row = run_one(run, *words, "--rate", "1000", "--limit", "3")
    assert (code, row["state"], row["done"]) == (0, "completed", 3)
    assert client.stats(queue).free == 3


def test_a_job_is_started_looked_at_and_cancelled(client: Client, queue: str) -> None:
    dead = let_die(client, queue, *range(20))
    job = client.start_redrive(dead, filter={}, max_per_second=1)
    assert job.state == "running"
    client.cancel_job(job.path)
    assert client.get_job(job.path).state == "cancelled"


JOBS = ("dlq redrive", "dlq redrive --rate 1", "message cancel --group g")


@pytest.mark.parametrize("words", JOBS)
def test_a_job_needs_a_queue(run: Run, client: Client, queue: str, words: str) -> None:
    dead = f"{queue}-dead"
    assert run(*words.split(), dead) == (3, [])
    assert run.said == f"zaqar-lite: No such queue: {dead}\n"
    client.create_queue(queue, {"_dead_letter_queue": dead})  # its first letter will make it
    assert run(*words.split(), dead)[0] == 0


def test_a_group_is_cancelled(run: Run, client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 600})
    client.post_batch(queue, [NewMessage(body=1, group="a"), NewMessage(body=2, group="b")])
    assert run("message", "post", queue, "3", "--group", "a")[0] == 0
    code, row = run_one(run, "message", "cancel", queue, "--group", "a", "--watch")
    assert (code, row["done"]) == (0, 2)
    left = list(client.list_messages(queue, include_delayed=True, echo=True))
    assert [message.body for message in left] == [2]
    assert run("message", "cancel", queue)[0] == 2


def test_what_is_delayed_is_moved(run: Run, client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 600})
    one, two = client.post_batch(queue, [NewMessage(body=1, group="a"), NewMessage(body=2)])
    (seen,) = client.get_messages(queue, [one], details=True)
    assert seen.delay_expires is not None
    due = seen.delay_expires.isoformat()
    code, row = run_one(run, "message", "move", queue, one, "--by", "100", "--if-due", due)
    assert (code, row["done"], row["path"]) == (0, 1, "")
    code, row = run_one(run, "message", "move", queue, one, "--by", "-5m", "--if-due", due)
    assert (code, row["done"], row["refused"]) == (1, 0, {"due_changed": 1})
    with pytest.raises(DueChanged):
        client.edit(queue, one, delay=60, if_due=seen.delay_expires)
    to = "2001-01-01T00:00:00Z"
    code, row = run_one(run, "message", "move", queue, "--group", "a", "--to", to, "--watch")
    assert (code, row["done"]) == (0, 1)
    assert [message.body for message in client.claim(queue)] == [1]
    # Of what is not there all, as for every other command, or a part.
    for there, ended in (([], (3, 0)), ([two], (1, 1))):
        code, row = run_one(run, "message", "move", queue, "absent", *there, "--by", "1m")
        assert (code, row["done"], row["refused"]) == (*ended, {"gone": 1})


def test_schedules(run: Run, client: Client, queue: str) -> None:
    name = f"s-{queue}"
    code, made = run_one(
        run, "schedule", "create", name, queue, '{"n": 1}', "--cron", "30 2 * * *",
        "--time-zone", "Europe/Berlin", "--jitter", "5m", "--header", "a=b",
        "--ttl", "1h", "--delay", "1m",
    )  # fmt: skip
    assert (code, made["body"], made["headers"]) == (0, {"n": 1}, {"a": "b"})
    assert (made["ttl"], made["delay"]) == (3_600, 60)
    code, rows = run("schedule", "next", name)
    assert [row["next"] for row in rows] == made["next"]
    code, rows = run("schedule", "list")
    assert name in [row["name"] for row in rows]
    assert run_one(run, "schedule", "pause", name)[1]["next"] == []
    assert run_one(run, "schedule", "resume", name)[1]["next"] == made["next"]
    code, fired = run_one(run, "schedule", "fire", name)
    (message,) = client.get_messages(queue, [fired["message_id"]])
    assert message.body == {"n": 1}
    assert run_one(run, "schedule", "show", name)[1]["queue"] == queue
    again = run_one(run, "schedule", "create", name, queue, "null", "--every", "1h")[1]
    assert (again["body"], again["every"]) == (None, "1h")
    assert run("schedule", "delete", name)[0] == 0
    assert run("schedule", "show", name)[0] != 0


def test_the_sdk_changes_a_schedule_in_part(client: Client, queue: str) -> None:
    """What no command does; the rest of the SDK's methods is what the commands above call."""
    schedules, start = client.schedules, dt.datetime(2040, 1, 1, 12, tzinfo=dt.UTC)
    made = schedules.put(queue, queue, {"n": 1}, every="1h", start=start, group="g", delay=None)
    assert (made["body"], made["every"], made["group"]) == ({"n": 1}, "1h", "g")
    hours = [start + dt.timedelta(hours=hour) for hour in range(5)]
    assert list(schedules.next(queue)) == hours
    assert schedules.patch(queue, every="2h", group=None)["every"] == "2h"
    assert "group" not in schedules.get(queue)
    assert schedules.next(queue)[1] == hours[2]
    for _ in range(2):
        schedules.delete(queue)
    with pytest.raises(ValueError, match="the name or id in schedules is empty"):
        schedules.get("")
    for name in (queue, ".", ".."):
        with pytest.raises(NotFound):
            schedules.get(name)
