"""Subscriptions in the SDK and on the command line, with the receiver of the command line."""

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.faulty_server import FaultyServer
from tests.commands.running import ZAQAR, Run
from tests.server import ServerProcess
from tests.services.process import free_port, listens, wait_until
from zaqar_lite.client import Client, ServerWarning
from zaqar_lite.webhooks import signed_headers

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def delivering() -> Iterator[ServerProcess]:
    """A server that may call this machine."""
    with ServerProcess("memory://", env={"ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8"}) as running:
        yield running


def test_a_subscriber_that_the_server_refuses_is_warned_of(
    run: Run, client: Client, queue: str
) -> None:
    _, (made,) = run("subscription", "create", queue, "http://127.0.0.1:9999/")
    assert made["secret"].startswith("whsec_")
    assert run.said == (
        "zaqar-lite: warning: Nothing will be delivered to this subscriber: the target is in a "
        "network that may not be called (delivery_allowed).\n"
    )
    run("subscription", "create", queue, "https://receiver.example/")
    assert run.said == ""
    with pytest.raises(ServerWarning, match="Nothing will be delivered") as raised:
        client.update_subscription(queue, made["id"], subscriber="http://10.0.0.1/")
    assert raised.value.result is None
    assert client.get_subscription(queue, made["id"]).subscriber == "http://10.0.0.1/"


def test_a_message_is_received_signed_and_its_delivery_is_shown(
    run: Run, delivering: ServerProcess
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    code, (made,) = run(
        "subscription", "create", "hooks", url, "--ttl", "1h", "--json", url=delivering.url
    )
    assert code == 0
    words = ("listen", "--port", str(port), "--secret", made["secret"], "--count", "2", "--json")
    with subprocess.Popen([*ZAQAR, *words], stdout=subprocess.PIPE) as receiver:
        try:
            wait_until(lambda: listens(port), [], timeout=60)
            with Client(delivering.url, project="tests") as client:
                posted = client.post("hooks", {"order": 7})
                (answer,) = run(
                    "subscription", "ping", "hooks", made["id"], "--json", url=delivering.url
                )[1]
                assert (answer["outcome"], answer["status"]) == ("delivered", 204)
                shown, _ = receiver.communicate(timeout=60)
                rows = [json.loads(line) for line in shown.splitlines()]
                assert all(row["verified"] for row in rows)
                (came,) = [row for row in rows if row["body"]["Message_Type"] == "Notification"]
                assert came["body"]["body"] == {"order": 7}
                assert came["id"] == f"msg_{posted}"
                wait_until(lambda: len(client.deliveries("hooks", made["id"])) == 1, [], timeout=30)
        finally:
            receiver.kill()
    _, log = run("subscription", "log", "hooks", made["id"], "--json", url=delivering.url)
    assert [(row["outcome"], row["status"]) for row in log] == [("delivered", 204)]
    _, (again,) = run(
        "subscription", "replay", "hooks", made["id"], "--from", "2020-01-01", "--json",
        url=delivering.url,
    )  # fmt: skip
    assert again == {"replayed": 1}
    _, listed = run("subscription", "list", "hooks", "--json", url=delivering.url)
    assert [row["id"] for row in listed] == [made["id"]]
    assert run("subscription", "delete", "hooks", made["id"], url=delivering.url)[0] == 0


def test_what_failed_is_listed_and_delivered_again(run: Run, delivering: ServerProcess) -> None:
    with FaultyServer() as server:
        server.script.append(404)
        url = f"{server.url}/"

        def ask(verb: str, *words: str) -> list[Any]:
            code, rows = run("subscription", verb, "again", *words, "--json", url=delivering.url)
            assert code == 0
            return rows

        (made,) = ask("create", url)
        (shown,) = ask("show", made["id"])
        assert (shown["subscriber"], shown["confirmed"]) == (url, False)
        (rotated,) = ask("rotate", made["id"])
        assert rotated["secret"] != made["secret"]
        assert ask("enable", made["id"]) == []
        with Client(delivering.url, project="tests") as client:
            posted = client.post("again", 1)
            failed: list[Any] = []

            def has_failed() -> bool:
                failed[:] = ask("log", made["id"], "--failed")
                return bool(failed)

            wait_until(has_failed, [], timeout=30)
            assert (failed[0]["message_id"], failed[0]["attempts"]) == (posted, 1)
            ask("retry", made["id"], failed[0]["id"])
            wait_until(lambda: len(client.deliveries("again", made["id"])) == 2, [], timeout=30)
        assert ask("log", made["id"], "--failed") == []
        assert [row["outcome"] for row in ask("log", made["id"])] == ["delivered", "undeliverable"]
        ask("delete", made["id"])


def test_a_request_is_verified_without_a_server(run: Run) -> None:
    secret = "whsec_" + "QUJD" * 8

    headers = signed_headers([secret], message_id="m", timestamp=int(time.time()), body=b"{}")
    words = ("subscription", "verify", "-", "--headers", json.dumps(headers), "--secret", secret)
    assert run(*words, "--json", stdin=b"{}") == (0, [{"id": "m"}])
    assert run(*words, "--json", stdin=b"{ }")[0] == 1
