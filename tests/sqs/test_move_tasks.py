"""Dead letters over SQS's protocol, and the tasks that move them back."""

import asyncio
from typing import Any

import pytest

from tests.sqs.conftest import ACCOUNT, Sqs, policy

pytestmark = pytest.mark.anyio
ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"


async def with_letters(sqs: Sqs, count: int) -> str:
    """Let so many messages die; answer the URL of their queue."""
    dead = await sqs.create("dead")
    await sqs.call("SetQueueAttributes", Attributes={"RedrivePolicy": policy("dead", 2)})
    for number in range(count):
        await sqs.call("SendMessage", MessageBody=str(number))
    for _ in range(2):
        assert len(await sqs.receive(VisibilityTimeout=1)) == count
        sqs.api.advance(2)
    assert await sqs.receive() == []
    return dead


async def ended(sqs: Sqs) -> dict[str, Any]:
    """Wait for the end of the task; answer it."""
    async with asyncio.timeout(30):
        while True:
            task: dict[str, Any]
            (task,) = (await sqs.call("ListMessageMoveTasks", SourceArn=ARN))["Results"]
            if task["Status"] != "RUNNING":
                return task
            await asyncio.sleep(0.05)


async def test_letters_are_moved_back_or_to_another_queue(sqs: Sqs) -> None:
    dead = await with_letters(sqs, 3)
    (letter, *_) = await sqs.receive(
        QueueUrl=dead, AttributeNames=["All"], VisibilityTimeout=0
    )  # whose messages were received as often as the policy says
    source = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{sqs.api.queue}"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == source
    started = await sqs.call("StartMessageMoveTask", SourceArn=ARN)
    task = await ended(sqs)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert task["ApproximateNumberOfMessagesToMove"] == 3
    assert "TaskHandle" not in task
    assert len(await sqs.receive(VisibilityTimeout=1)) == 3
    error = await sqs.error("CancelMessageMoveTask", TaskHandle=started["TaskHandle"])
    assert error == "ResourceNotFoundException"


async def test_letters_are_moved_to_another_queue(sqs: Sqs) -> None:
    await with_letters(sqs, 2)
    url = await sqs.create("other")
    destination = f"arn:aws:sqs:us-east-1:{ACCOUNT}:other"
    await sqs.call("StartMessageMoveTask", SourceArn=ARN, DestinationArn=destination)
    assert (await ended(sqs))["DestinationArn"] == destination
    assert len(await sqs.receive(QueueUrl=url)) == 2


async def test_a_task_is_cancelled(sqs: Sqs) -> None:
    await with_letters(sqs, 9)
    handle = (
        await sqs.call("StartMessageMoveTask", SourceArn=ARN, MaxNumberOfMessagesPerSecond=1)
    )["TaskHandle"]
    error = await sqs.error("StartMessageMoveTask", SourceArn=ARN)
    assert error == "UnsupportedOperation"
    (task,) = (await sqs.call("ListMessageMoveTasks", SourceArn=ARN))["Results"]
    assert (task["TaskHandle"], task["MaxNumberOfMessagesPerSecond"]) == (handle, 1)
    cancelled = await sqs.call("CancelMessageMoveTask", TaskHandle=handle)
    assert cancelled["ApproximateNumberOfMessagesMoved"] < 9
    assert (await ended(sqs))["Status"] == "CANCELLED"
