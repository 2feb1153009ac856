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


class Subscription:
    """Runs `zaqar-lite subscription VERB QUEUE`, which succeeds, for that server."""

    def __init__(self, run: Run, server: ServerProcess, queue: str) -> None:
        self._run, self._queue = run, queue
        self.client = Client(server.url, project="tests")

    def __call__(self, verb: str, *words: str) -> list[Any]:
        code, rows = self._run("subscription", verb, self._queue, *words, url=self.client.url)
        assert code == 0
        return rows


@pytest.fixture
def subscription(run: Run, delivering: ServerProcess, queue: str) -> Iterator[Subscription]:
    made = Subscription(run, delivering, queue)
    with made.client:
        yield made


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
    subscription: Subscription, queue: str
) -> None:
    client, port = subscription.client, free_port()
    (made,) = subscription("create", f"http://127.0.0.1:{port}/hook", "--ttl", "1h")
    words = ("listen", "--port", str(port), "--secret", made["secret"], "--count", "2", "--json")
    with subprocess.Popen([*ZAQAR, *words], stdout=subprocess.PIPE) as receiver:
        try:
            wait_until(lambda: listens(port), [], timeout=60)
            posted = client.post(queue, {"order": 7})
            (answer,) = subscription("ping", made["id"])
            assert (answer["outcome"], answer["status"]) == ("delivered", 204)
            shown, _ = receiver.communicate(timeout=60)
            rows = [json.loads(line) for line in shown.splitlines()]
            assert all(row["verified"] for row in rows)
            (came,) = [row for row in rows if row["body"]["Message_Type"] == "Notification"]
            assert came["body"]["body"] == {"order": 7}
            assert came["id"] == f"msg_{posted}"
            wait_until(lambda: len(client.deliveries(queue, made["id"])) == 1, [], timeout=30)
        finally:
            receiver.kill()
    log = subscription("log", made["id"])
    assert [(row["outcome"], row["status"]) for row in log] == [("delivered", 204)]
    assert subscription("replay", made["id"], "--from", "2020-01-01") == [{"replayed": 1}]
    assert [row["id"] for row in subscription("list")] == [made["id"]]
    subscription("delete", made["id"])


def test_what_failed_is_listed_and_delivered_again(subscription: Subscription, queue: str) -> None:
    client, failed = subscription.client, list[Any]()
    with FaultyServer() as server:
        server.script.append(404)
        (made,) = subscription("create", f"{server.url}/")
        (shown,) = subscription("show", made["id"])
        assert (shown["subscriber"], shown["confirmed"]) == (f"{server.url}/", False)
        (rotated,) = subscription("rotate", made["id"])
        assert rotated["secret"] != made["secret"]
        assert subscription("enable", made["id"]) == []
        posted = client.post(queue, 1)

        def has_failed() -> bool:
            failed[:] = subscription("log", made["id"], "--failed")
            return bool(failed)

        wait_until(has_failed, [], timeout=30)
        assert (failed[0]["message_id"], failed[0]["attempts"]) == (posted, 1)
        subscription("retry", made["id"], failed[0]["id"])
        wait_until(lambda: len(client.deliveries(queue, made["id"])) == 2, [], timeout=30)
        assert not has_failed()
        log = subscription("log", made["id"])
        assert [row["outcome"] for row in log] == ["delivered", "undeliverable"]
        subscription("delete", made["id"])


def test_a_request_is_verified_without_a_server(run: Run) -> None:
    secret = "whsec_" + "QUJD" * 8

    headers = signed_headers([secret], message_id="m", timestamp=int(time.time()), body=b"{}")
    words = ("subscription", "verify", "-", "--headers", json.dumps(headers), "--secret", secret)
    assert run(*words, "--json", stdin=b"{}") == (0, [{"id": "m"}])
    assert run(*words, "--json", stdin=b"{ }")[0] == 1
