"""Topics from the command line, and from the SDK below it."""

import dataclasses
import json
import time
from pathlib import Path

from tests.commands.running import Run
from tests.proxy import OldServer
from tests.server import ServerProcess
from zaqar_lite.client import Client, Message, Topic


def test_one_post_reaches_the_queues_that_subscribe(run: Run, client: Client, queue: str) -> None:
    assert run("topic", "create", queue, "--metadata", '{"colour": "red"}')[1] == [
        {"topic": queue, "created": True}
    ]
    assert run("topic", "show", queue)[1][0]["colour"] == "red"
    assert run("topic", "list", "--name", queue)[1] == [{"name": queue}]
    for name in (f"{queue}.a", f"{queue}.b"):
        code, (made,) = run("topic", "subscribe", queue, f"queue:{name}")
        assert code == 0
    assert len(run("topic", "subscriptions", queue)[1]) == 2
    words = ("--ttl", "10m", "--header", "kind=a")
    assert run("topic", "post", queue, '{"n": 1}', *words)[0] == 0
    assert run("topic", "post", queue, "plain text")[0] == 0
    for name in (f"{queue}.a", f"{queue}.b"):
        found = wait_for(client, name, 2)
        assert {str(message.body) for message in found} == {"{'n': 1}", "plain text"}
        assert {"kind": "a"} in [message.headers for message in found]
    assert run("topic", "unsubscribe", queue, made["id"])[0] == 0
    assert len(run("topic", "subscriptions", queue)[1]) == 1
    assert run("topic", "delete", queue)[0] == 0
    assert run("topic", "list", "--name", queue) == (0, [])


def wait_for(client: Client, name: str, count: int) -> list[Message]:
    until = time.monotonic() + 20
    found: list[Message] = []
    while len(found) < count and time.monotonic() < until:
        found = list(client.list_messages(name, details=True, wait=1))
    assert len(found) == count
    return found


def test_the_methods_of_queues_take_a_topic(client: Client, queue: str) -> None:
    """The first post makes it."""
    topic = Topic(queue)
    assert client.post(topic, 0)
    assert [one.name for one in client.list_topics(name=queue)] == [queue]
    client.subscribe(topic, f"queue:{queue}")
    assert len(client.post_batch(topic, [1, 2])) == 2
    wait_for(client, queue, 2)
    assert client.update_topic(queue, {"a": 1})["a"] == 1
    client.purge(topic)
    assert list(client.list_subscriptions(topic)) == []
    permit = client.share(topic, methods=["POST"])
    assert list(permit.paths) == [f"/v2/topics/{queue}/messages"]


def test_tail_asks_again_and_again_where_there_are_no_streams_or_none_for_it(
    run: Run, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    client.post_batch(queue, [1, 2])
    words = ("message", "tail", queue, "--from-start", "--count", "2")
    with OldServer(server.url) as old:
        _, rows = run(*words, url=old.url)
    assert [row["body"] for row in rows] == [1, 2]
    signed = tmp_path / "signed.json"  # for messages alone
    signed.write_text(json.dumps(dataclasses.asdict(client.share(queue))))
    assert [row["body"] for row in run(*words, "--signed", str(signed))[1]] == [1, 2]
