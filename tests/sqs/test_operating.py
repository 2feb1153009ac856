"""What whoever runs the server sees of SQS's requests, and what bounds them."""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.api.conftest import MakeApi
from tests.api.sockets import Raw, request
from tests.server import ServerProcess
from tests.services.process import run_program
from tests.sqs.conftest import ACCOUNT, HOST, Sqs, ask_server

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


def asking(operation: str, document: bytes, path: str = "/", **headers: str) -> bytes:
    """The bytes of a request, which names no project by a header."""
    named = {"X-Amz-Target": f"AmazonSQS.{operation}", **headers}
    sent = request("POST", path, document, headers=named)
    return sent.replace(b"X-Project-ID: demo\r\n", b"")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with SQS's protocol."""
    with ServerProcess("memory://", "--sqs") as started:
        yield started


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


def test_a_post_takes_few_calls_and_no_more_beside_sqs() -> None:
    def calls(*options: str) -> Any:
        command = [sys.executable, str(ROOT / "tests" / "http_calls.py"), *options]
        done = run_program(command, cwd=ROOT, check=True)
        found = json.loads(done.stdout)
        return found["functions"], found["depth"], round(found["calls"])

    functions, depth, called = calls()
    assert functions <= 12
    assert called <= 110
    assert calls("--sqs") == (functions, depth, called)


def test_nothing_is_received_for_a_client_that_has_gone(server: ServerProcess) -> None:
    url = ask_server(server.url, "CreateQueue", QueueName="gone")["QueueUrl"]
    document = orjson.dumps({"QueueUrl": url, "WaitTimeSeconds": 20})
    for _ in range(20):
        with Raw(server) as raw:
            raw.send(asking("ReceiveMessage", document))
            time.sleep(0.02)
    ask_server(server.url, "SendMessage", QueueUrl=url, MessageBody="x")
    asked = {"WaitTimeSeconds": 5, "AttributeNames": ["ApproximateReceiveCount"]}
    (message,) = ask_server(server.url, "ReceiveMessage", QueueUrl=url, **asked)["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_each_request_is_answered_by_its_own_document_and_key(server: ServerProcess) -> None:
    """Though its head is known but for its length, date and signature, and parsed only once."""
    with Raw(server) as raw:
        numbers = itertools.count()

        def ask(
            operation: str, document: bytes, key: str = "first", path: str = ""
        ) -> tuple[int, Any]:
            path = path or f"/v2/queues/jobs/messages/{next(numbers):032x}"  # it says nothing
            credential = f"Credential={key}/20261128/r/sqs/aws4_request"
            named = {
                "X-Amz-Date": f"20261128T{next(numbers):06}Z",
                "Authorization": f"AWS4-HMAC-SHA256 {credential}, Signature={next(numbers):064x}",
            }
            raw.send(asking(operation, document, path, **named))
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
async def test_a_receive_waits_whatever_its_path_says(server: ServerProcess, path: str) -> None:
    ask: Any = partial(asyncio.to_thread, partial(ask_server, f"{server.url}{path}"))
    url = (await ask("CreateQueue", QueueName="waits"))["QueueUrl"]
    waiting = asyncio.create_task(ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    await asyncio.sleep(0.1)
    await ask("SendMessage", QueueUrl=url, MessageBody="x")
    assert [one["Body"] for one in (await waiting)["Messages"]] == ["x"]
