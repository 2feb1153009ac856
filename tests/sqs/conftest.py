"""The application with SQS's protocol, in this process, and a client that writes it by hand."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from tests.api.conftest import Api, MakeApi, make_api

__all__ = ["make_api"]
ACCOUNT = "demo"
HOST = "queues.example"


def policy(name: str, count: object, account: str = ACCOUNT) -> str:
    """A redrive policy of a dead-letter queue."""
    arn = f"arn:aws:sqs:eu-west-1:{account}:{name}"
    return orjson.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count}).decode()


class SqsAnswer:
    """What an operation answered."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.document: dict[str, Any] = orjson.loads(body)

    @property
    def error(self) -> tuple[str, str]:
        """The error in both forms: the shape's name, and the old code."""
        assert self.status >= 400, self.document
        kind = self.document["__type"].rpartition("#")[2]
        return kind, self.headers["x-amzn-query-error"].partition(";")[0]


def ask_server(url: str, operation: str, **document: Any) -> dict[str, Any]:
    """Ask a server for an operation that succeeds; answer its document."""
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": f"AmazonSQS.{operation}",
    }
    answer = httpx.post(url, content=orjson.dumps(document), headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = orjson.loads(answer.content)
    return found


class Sqs:
    """A client of the JSON protocol, and the `api` beside it that speaks Zaqar's."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.url = f"http://{HOST}/{ACCOUNT}/{api.queue}"

    async def raw(
        self, target: str | None, content: bytes, path: str = "/", **headers: str
    ) -> SqsAnswer:
        """Send a document as it is."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("content-type", "application/x-amz-json-1.0")
        named.setdefault("host", HOST)
        if target is not None:
            named["x-amz-target"] = target
        request = self.api.http.build_request("POST", path, content=content, headers=named)
        del request.headers["X-Project-ID"], request.headers["Client-ID"]
        request.headers.update(
            {name: headers[name] for name in ("X-Project-ID",) if name in headers}
        )
        answer = await self.api.http.send(request)
        return SqsAnswer(answer.status_code, dict(answer.headers), answer.content)

    async def ask(self, operation: str, **document: Any) -> SqsAnswer:
        """Ask for an operation on the test's queue, unless the document names another one."""
        if "QueueName" not in document:
            document.setdefault("QueueUrl", self.url)
        return await self.raw(f"AmazonSQS.{operation}", orjson.dumps(document))

    async def call(self, operation: str, **document: Any) -> dict[str, Any]:
        """Ask for an operation that succeeds; answer its document."""
        answer = await self.ask(operation, **document)
        assert answer.status == 200, answer.document
        return answer.document

    async def error(self, operation: str, **document: Any) -> str:
        """Ask for an operation that fails; answer the name of the error's shape."""
        return (await self.ask(operation, **document)).error[0]

    async def create(self, name: str | None = None, **attributes: str) -> str:
        """Create the test's queue, or another one; answer its URL."""
        path = f"/{ACCOUNT}/"
        document = {"QueueName": name or self.api.queue, "Attributes": attributes}
        answer = await self.raw("AmazonSQS.CreateQueue", orjson.dumps(document), path)
        assert answer.status == 200, answer.document
        url: str = answer.document["QueueUrl"]
        return url

    async def receive(self, **document: Any) -> list[dict[str, Any]]:
        """Receive up to ten messages."""
        given = {"MaxNumberOfMessages": 10, **document}
        messages: list[dict[str, Any]] = (await self.call("ReceiveMessage", **given)).get(
            "Messages", []
        )
        return messages

    async def attributes(self, *names: str) -> dict[str, str]:
        """The attributes of the test's queue."""
        asked = await self.call("GetQueueAttributes", AttributeNames=names or ("All",))
        found: dict[str, str] = asked.get("Attributes", {})
        return found


@pytest.fixture
async def sqs(make_api: MakeApi) -> AsyncIterator[Sqs]:
    """A server with SQS's protocol, and the test's queue in it."""
    async with make_api(sqs=True, allowed_hosts=HOST) as api:
        made = Sqs(api)
        await made.create()
        yield made
