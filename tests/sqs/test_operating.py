"""What whoever runs the server sees of SQS's requests, and what bounds them."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
import pytest

from tests.api.conftest import MakeApi
from tests.api.sockets import Raw
from tests.server import ServerProcess
from tests.sqs.conftest import ACCOUNT, HOST, Sqs

if find_spec("boto3") is None and "CI" not in os.environ:
    pytest.skip("boto3 is missing: tests/run --prepare", allow_module_level=True)

import boto3

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


async def test_managing_acts_are_in_the_audit_trail(make_api: MakeApi, tmp_path: Path) -> None:
    file = tmp_path / "audit"
    async with make_api(sqs=True, audit=str(file), allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create()
        await sqs.call("TagQueue", Tags={"a": "b"})
        await sqs.call("SendMessage", MessageBody="x")
        await sqs.receive()
        await sqs.call("PurgeQueue")
        await sqs.call("DeleteQueue")
        await sqs.error("DeleteQueue")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    kind = "data/messaging/queue"
    assert [(one["action"], one["target"], one["outcome"]) for one in found] == [
        (action, {"typeURI": kind, "id": api.queue}, outcome)
        for action, outcome in (
            ("create", "success"),
            ("update/tag", "success"),
            ("update/purge", "success"),
            ("delete", "success"),
            ("delete", "failure"),
        )
    ]
    assert {one["initiator"]["project_id"] for one in found} == {ACCOUNT}


async def test_requests_are_counted_and_logged_by_their_operation(
    make_api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zaqar_lite.access")
    async with make_api(sqs=True, access_log=True, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create()
        await sqs.call("SendMessage", MessageBody="x")
        page = (await api.call("GET", "/metrics")).text
    assert 'route="POST /#SendMessage"' in page
    logged = [vars(one)["fields"] for one in caplog.records if one.name == "zaqar_lite.access"]
    (line,) = (fields for fields in logged if fields["route"] == "sqs_send_message")
    assert (line["queue"], line["project"]) == (api.queue, ACCOUNT)


async def test_quotas_and_rates_hold(make_api: MakeApi) -> None:
    quotas = {"queues": 1, "messages": 2, "waiters": 0}
    async with make_api(sqs=True, quotas=quotas, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create()
        document = orjson.dumps({"QueueName": "another"})
        answer = await sqs.raw("AmazonSQS.CreateQueue", document, f"/{ACCOUNT}/")
        assert (answer.status, answer.error[0]) == (403, "OverLimit")
        for _ in range(2):
            await sqs.call("SendMessage", MessageBody="x")
        assert await sqs.error("SendMessage", MessageBody="x") == "OverLimit"
        assert len(await sqs.receive()) == 2
        assert await sqs.error("ReceiveMessage", WaitTimeSeconds=1) == "OverLimit"
    async with make_api(sqs=True, quotas={"write_requests": 1}, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create()
        answers = [await sqs.ask("SendMessage", MessageBody="x") for _ in range(30)]
        assert answers[0].status == 200
        slow = next(answer for answer in answers if answer.status != 200)
        assert slow.error[0] == "RequestThrottled"
        assert int(slow.headers["retry-after"]) >= 1


async def test_it_is_off_by_default(make_api: MakeApi) -> None:
    async with make_api(allowed_hosts=HOST) as api:
        headers = {"x_amz_target": "AmazonSQS.ListQueues"}
        assert (await api.call("POST", "/", {}, **headers)).status_code == 405


async def test_the_older_protocol_is_refused_in_its_own_form(make_api: MakeApi) -> None:
    async with make_api(sqs=True) as api:
        for path in ("/", f"/{ACCOUNT}/jobs"):
            answer = await api.http.post(path, data={"Action": "SendMessage"})
            assert answer.status_code == 400
            assert answer.headers["content-type"] == "text/xml"
            assert "<Code>AWS.SimpleQueueService.UnsupportedOperation</Code>" in answer.text
        # What is Zaqar's stays so.
        answer = await api.http.post("/v2/queues/a/messages", data={"Action": "SendMessage"})
        assert answer.json()["title"] == "Invalid Content-Type"
        assert (await api.call("GET", "/")).status_code == 300


def test_zaqars_posts_cost_the_same() -> None:
    def calls(*options: str) -> Any:
        command = [sys.executable, str(ROOT / "tests" / "http_calls.py"), *options]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        found = json.loads(done.stdout)
        return found["functions"], found["depth"], round(found["calls"])

    assert calls("--sqs") == calls()


def test_nothing_is_received_for_a_client_that_has_gone() -> None:
    with ServerProcess("memory://", "--sqs") as server:
        client = boto3.client(
            "sqs",
            endpoint_url=server.url,
            region_name="r",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        url = client.create_queue(QueueName="jobs")["QueueUrl"]
        document = orjson.dumps({"QueueUrl": url, "WaitTimeSeconds": 20})
        head = (
            "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            f"Content-Length: {len(document)}\r\n\r\n"
        )
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(head.encode() + document)
                time.sleep(0.02)
        client.send_message(QueueUrl=url, MessageBody="x")
        (message,) = client.receive_message(
            QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["ApproximateReceiveCount"]
        )["Messages"]
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_requests_may_come_in_pieces() -> None:
    with ServerProcess("memory://", "--sqs") as server:
        document = orjson.dumps({"QueueName": "jobs"})
        head = "POST /demo HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{}\r\n"
        head += "X-Amz-Date: {}\r\nContent-Length: {}\r\n\r\n"
        requests = b""
        for number in range(40):
            operation = "CreateQueue" if number % 2 else "GetQueueUrl"
            requests += head.format(operation, number, len(document)).encode() + document
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(requests), 61):
                connection.sendall(requests[at : at + 61])
                time.sleep(0.001)
            connection.shutdown(socket.SHUT_WR)
            answers = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert answers.count(b"HTTP/1.1 400 ") == 1, "there is no queue at first"
        assert answers.count(b"HTTP/1.1 200 ") == 39
        # One that announces a body which it never sends is not waited for at the end.
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.format("CreateQueue", 1, 9).encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(65_536) == b""


def test_each_request_is_answered_by_its_own_document_and_key() -> None:
    """Though its head is known but for its length, date and signature, and parsed only once."""
    with ServerProcess("memory://", "--sqs") as server, Raw(server) as raw:
        numbers = itertools.count()

        def ask(
            operation: str, document: bytes, key: str = "first", path: str = ""
        ) -> tuple[int, Any]:
            path = path or f"/v2/queues/jobs/messages/{next(numbers):032x}"  # it says nothing
            credential = f"Credential={key}/20261128/r/sqs/aws4_request"
            named = {
                "X-Amz-Target": f"AmazonSQS.{operation}",
                "X-Amz-Date": f"20261128T{next(numbers):06}Z",
                "Authorization": f"AWS4-HMAC-SHA256 {credential}, Signature={next(numbers):064x}",
            }
            lines = [f"{name}: {text}" for name, text in named.items()]
            head = [
                f"POST {path} HTTP/1.1",
                "Host: localhost",
                *lines,
                f"Content-Length: {len(document)}",
            ]
            raw.send("\r\n".join((*head, "", "")).encode() + document)
            answer = raw.answer()
            found = answer.json()
            return answer.status, found.get("__type", "").rpartition("#")[2] or found

        def of(account: str, **document: Any) -> bytes:
            return orjson.dumps({"QueueUrl": f"http://x/{account}/jobs", **document})

        for account in ("one", "other"):
            assert ask("CreateQueue", b'{"QueueName": "jobs"}', path=f"/{account}")[0] == 200
        for number in range(2):
            for account in ("one", "other"):
                sent = of(account, MessageBody=account * (number + 1))
                assert ask("SendMessage", sent, key=account)[0] == 200
            assert ask("SendMessage", of("none", MessageBody="x")) == (400, "QueueDoesNotExist")
            assert ask("SendMessage", b"[") == (400, "SerializationException")
            large = of("one", MessageBody="x" * 300_000)
            assert ask("SendMessage", large) == (400, "InvalidParameterValue")
        for account in ("one", "other"):
            asked = of(account, MaxNumberOfMessages=10, AttributeNames=["SenderId"])
            _, found = ask("ReceiveMessage", asked)
            assert [one["Body"] for one in found["Messages"]] == [account, account * 2]
            sender = sha256(account.encode()).hexdigest()[:32]
            assert {one["Attributes"]["SenderId"] for one in found["Messages"]} == {sender}


@pytest.mark.parametrize("path", ["/", "/v2/queues/jobs/messages"])
async def test_a_receive_waits_whatever_its_path_says(path: str) -> None:
    with ServerProcess("memory://", "--sqs") as server:
        async with httpx.AsyncClient(base_url=server.url) as http:

            async def ask(operation: str, **document: Any) -> Any:
                named = {"x-amz-target": f"AmazonSQS.{operation}"}
                content = orjson.dumps({"QueueUrl": "http://x/demo/jobs", **document})
                answer = await http.post(path, content=content, headers=named, timeout=30)
                assert answer.status_code == 200, answer.text
                return answer.json()

            made = await ask("CreateQueue", QueueName="jobs")
            account = made["QueueUrl"].split("/")[3]
            url = f"http://x/{account}/jobs"
            async with anyio.create_task_group() as group:

                async def receive() -> None:
                    found = await ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
                    assert [one["Body"] for one in found["Messages"]] == ["x"]

                group.start_soon(receive)
                await anyio.sleep(0.1)
                await ask("SendMessage", QueueUrl=url, MessageBody="x")
