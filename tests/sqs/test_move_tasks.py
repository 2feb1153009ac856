"""Dead letters over SQS's protocol, and the tasks that move them back."""

import asyncio
from typing import Any

import pytest

from tests.sqs.conftest import ACCOUNT, Sqs
from tests.sqs.test_queues import policy

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


async def test_a_message_is_received_as_often_as_the_policy_says(sqs: Sqs) -> None:
    dead = await with_letters(sqs, 1)
    (letter,) = await sqs.receive(QueueUrl=dead, AttributeNames=["All"])
    source = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{sqs.api.queue}"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == source


async def test_letters_are_moved_back(sqs: Sqs) -> None:
    await with_letters(sqs, 3)
    started = await sqs.call("StartMessageMoveTask", SourceArn=ARN)
    task = await ended(sqs)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert task["ApproximateNumberOfMessagesToMove"] == 3
    assert "TaskHandle" not in task
    assert len(await sqs.receive()) == 3
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


@pytest.mark.parametrize(
    ("operation", "document", "error"),
    [
        ("StartMessageMoveTask", {"SourceArn": ARN + "x"}, "QueueDoesNotExist"),
        ("StartMessageMoveTask", {"SourceArn": "x"}, "InvalidParameterValue"),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN, "DestinationArn": ARN + "x"},
            "QueueDoesNotExist",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN, "MaxNumberOfMessagesPerSecond": 501},
            "InvalidParameterValue",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN, "MaxNumberOfMessagesPerSecond": 0},
            "InvalidParameterValue",
        ),
        ("ListMessageMoveTasks", {"SourceArn": ARN, "MaxResults": 11}, "InvalidParameterValue"),
        ("ListMessageMoveTasks", {"SourceArn": ARN, "MaxResults": 0}, "InvalidParameterValue"),
        ("CancelMessageMoveTask", {"TaskHandle": ARN + "/x"}, "ResourceNotFoundException"),
        ("CancelMessageMoveTask", {"TaskHandle": "é"}, "InvalidParameterValue"),
    ],
)
async def test_what_a_task_may_not_be(
    sqs: Sqs, operation: str, document: dict[str, Any], error: str
) -> None:
    await sqs.create("dead")
    await sqs.call("SetQueueAttributes", Attributes={"RedrivePolicy": policy("dead", 2)})
    assert await sqs.error(operation, **document) == error


async def test_only_the_letters_of_a_dead_letter_queue_are_moved(sqs: Sqs) -> None:
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{sqs.api.queue}"
    assert await sqs.error("StartMessageMoveTask", SourceArn=arn) == "InvalidParameterValue"
