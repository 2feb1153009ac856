"""The scenario of `test_sdks.py` by boto3 or aioboto3: `scenario.py LIBRARY PREFIX`.

It runs in an environment of its own and prints one line of JSON for each step.
"""

import asyncio
import contextlib
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "grüße"},
    "number": {"DataType": "Number.int", "StringValue": "42"},
    "bytes": {"DataType": "Binary", "BinaryValue": bytes([0, 1, 254, 255])},
}


class Client:
    """One client for both libraries: a call of boto3's answers at once, aioboto3's later."""

    def __init__(self, client: Any, is_async: bool) -> None:
        self._client = client
        self._is_async = is_async

    async def call(self, operation: str, **arguments: Any) -> Any:
        answer = getattr(self._client, operation)(**arguments)
        return await answer if self._is_async else answer

    @property
    def missing_queue(self) -> Any:
        return self._client.exceptions.QueueDoesNotExist

    async def receive(self, url: str, **arguments: Any) -> list[Any]:
        answer = await self.call("receive_message", QueueUrl=url, **arguments)
        return list(answer.get("Messages", ()))

    async def receive_one(self, url: str, **arguments: Any) -> Any:
        (message,) = await self.receive(url, WaitTimeSeconds=10, **arguments)
        return message

    async def attributes(self, url: str) -> Any:
        answer = await self.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return answer["Attributes"]


@contextlib.asynccontextmanager
async def open_client(library: str) -> AsyncIterator[Client]:
    """Make the client; the endpoint and the credentials are in the environment."""
    module = importlib.import_module(library)
    if library == "boto3":
        yield Client(module.client("sqs"), is_async=False)
    else:
        async with module.Session().client("sqs") as client:
            yield Client(client, is_async=True)


def tell(step: str, **result: Any) -> None:
    """Print one step's line."""
    print(json.dumps({"step": step, **result}), flush=True)


async def run(client: Client, prefix: str) -> None:
    """Go through the steps."""
    made = await client.call("create_queue", QueueName=f"{prefix}-dead")
    dead = made["QueueUrl"]
    arn = (await client.attributes(dead))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    name = f"{prefix}-jobs"
    made = await client.call("create_queue", QueueName=name, Attributes={"RedrivePolicy": policy})
    jobs = made["QueueUrl"]
    await client.call("set_queue_attributes", QueueUrl=jobs, Attributes={"VisibilityTimeout": "60"})
    kept = await client.attributes(jobs)
    tell(
        "create",
        queue=jobs.split("/")[-1],
        dead_letters=json.loads(kept["RedrivePolicy"])["deadLetterTargetArn"].split(":")[-1],
        visibility=kept["VisibilityTimeout"],
    )

    found = await client.call("get_queue_url", QueueName=name)
    try:
        await client.call("get_queue_url", QueueName=f"{prefix}-none")
        missing = False
    except client.missing_queue:
        missing = True
    listed = await client.call("list_queues", QueueNamePrefix=prefix)
    tell("find", same=found["QueueUrl"] == jobs, missing=missing, listed=len(listed["QueueUrls"]))

    sent = await client.call(
        "send_message", QueueUrl=jobs, MessageBody="first", MessageAttributes=ATTRIBUTES
    )
    tell("send", body=sent["MD5OfMessageBody"], attributes=sent["MD5OfMessageAttributes"])

    message = await client.receive_one(
        jobs, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"]
    )
    given = message["MessageAttributes"]
    tell(
        "receive",
        body=message["Body"],
        text=given["text"]["StringValue"],
        number=given["number"]["StringValue"],
        bytes=given["bytes"]["BinaryValue"].hex(),
        attributes=message["MD5OfMessageAttributes"],
        count=message["Attributes"]["ApproximateReceiveCount"],
    )

    handle = message["ReceiptHandle"]
    hidden = await client.receive(jobs)
    await client.call(
        "change_message_visibility", QueueUrl=jobs, ReceiptHandle=handle, VisibilityTimeout=0
    )
    again = await client.receive_one(jobs, MessageSystemAttributeNames=["All"])
    count = again["Attributes"]["ApproximateReceiveCount"]
    tell("visibility", hidden=len(hidden), body=again["Body"], count=count)

    await client.call("delete_message", QueueUrl=jobs, ReceiptHandle=again["ReceiptHandle"])
    left = await client.attributes(jobs)
    tell(
        "delete",
        visible=left["ApproximateNumberOfMessages"],
        hidden=left["ApproximateNumberOfMessagesNotVisible"],
    )

    entries = [{"Id": f"e{number}", "MessageBody": f"body {number}"} for number in range(10)]
    batch = await client.call("send_message_batch", QueueUrl=jobs, Entries=entries)
    tell("send_batch", sent=len(batch["Successful"]), failed=len(batch.get("Failed", ())))

    messages: list[Any] = []
    while len(messages) < 10:
        more = await client.receive(jobs, MaxNumberOfMessages=10, WaitTimeSeconds=10)
        assert more, f"only {len(messages)} messages came"
        messages += more
    bodies = sorted(message["Body"] for message in messages)
    extended = await client.call(
        "change_message_visibility_batch",
        QueueUrl=jobs,
        Entries=[
            {"Id": f"e{number}", "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 120}
            for number, one in enumerate(messages)
        ],
    )
    tell("receive_batch", bodies=bodies, extended=len(extended["Successful"]))

    handles = [message["ReceiptHandle"] for message in messages[:9]] + ["forged"]
    deleted = await client.call(
        "delete_message_batch",
        QueueUrl=jobs,
        Entries=[{"Id": f"e{n}", "ReceiptHandle": handle} for n, handle in enumerate(handles)],
    )
    (failed,) = deleted["Failed"]
    tell(
        "delete_batch",
        deleted=len(deleted["Successful"]),
        failed=[failed["Id"], failed["Code"], failed["SenderFault"]],
    )
    await client.call("delete_message", QueueUrl=jobs, ReceiptHandle=messages[9]["ReceiptHandle"])

    await client.call("send_message", QueueUrl=jobs, MessageBody="late", DelaySeconds=1)
    early = await client.receive(jobs)
    begun = time.monotonic()
    late = await client.receive_one(jobs)
    waited = time.monotonic() - begun
    await client.call("delete_message", QueueUrl=jobs, ReceiptHandle=late["ReceiptHandle"])
    tell("wait", early=len(early), body=late["Body"], seconds=waited)

    sources = await client.call("list_dead_letter_source_queues", QueueUrl=dead)
    await client.call("send_message", QueueUrl=jobs, MessageBody="poison")
    for _ in range(3):
        await client.receive_one(jobs, VisibilityTimeout=0)
    back = await client.receive(jobs)
    poison = await client.receive_one(dead, VisibilityTimeout=0)
    tell(
        "dead_letter",
        sources=[url.split("/")[-1] for url in sources["queueUrls"]],
        back=len(back),
        body=poison["Body"],
    )

    task = await client.call("start_message_move_task", SourceArn=arn)
    tasks = await client.call("list_message_move_tasks", SourceArn=arn)
    moved = await client.receive_one(jobs)
    tell(
        "redrive",
        handle=bool(task["TaskHandle"]),
        status=tasks["Results"][0]["Status"] in ("RUNNING", "COMPLETED"),
        body=moved["Body"],
    )

    await client.call("purge_queue", QueueUrl=jobs)
    for url in (jobs, dead):
        await client.call("delete_queue", QueueUrl=url)
    try:
        await client.call("send_message", QueueUrl=jobs, MessageBody="nowhere")
        missing = False
    except client.missing_queue:
        missing = True
    tell("drop", missing=missing)


async def main() -> None:
    """Run the scenario by the library that the command line names."""
    library, prefix = sys.argv[1:]
    async with open_client(library) as client:
        await run(client, prefix)


asyncio.run(main())
