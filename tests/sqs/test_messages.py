"""Messages over SQS's protocol: send, receive, hide and delete."""

import orjson
import pytest

from tests.sqs.conftest import Sqs

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seconds", [1, 43_200])
async def test_a_received_message_is_hidden_as_long_as_its_receiver_says(
    sqs: Sqs, seconds: int
) -> None:
    await sqs.call("SendMessage", MessageBody="x")
    assert len(await sqs.receive(VisibilityTimeout=seconds)) == 1
    sqs.api.advance(seconds - 0.5)
    assert await sqs.receive() == []
    sqs.api.advance(1)
    (message,) = await sqs.receive(AttributeNames=["ApproximateReceiveCount"])
    assert message["Attributes"] == {"ApproximateReceiveCount": "2"}


async def test_a_handle_is_of_one_message_of_one_queue(sqs: Sqs) -> None:
    await sqs.create("other")
    for body in ("a", "b"):
        await sqs.call("SendMessage", MessageBody=body)
    handles = {one["MessageId"]: one["ReceiptHandle"] for one in await sqs.receive()}
    (first, own), (second, _) = handles.items()
    invented = own.replace(first, second)
    assert invented != own
    assert await sqs.error("DeleteMessage", ReceiptHandle=invented) == "ReceiptHandleIsInvalid"
    for url in (sqs.url.replace(sqs.api.queue, "other"), sqs.url.replace("/demo/", "/demo2/")):
        answer = await sqs.raw(
            "AmazonSQS.CreateQueue",
            orjson.dumps({"QueueName": url.rpartition("/")[2]}),
            f"/{url.split('/')[3]}",
        )
        error = await sqs.error("DeleteMessage", QueueUrl=url, ReceiptHandle=own)
        assert (answer.status, error) == (200, "ReceiptHandleIsInvalid")
    await sqs.call("DeleteMessage", ReceiptHandle=own)
    sqs.api.advance(31)
    assert [one["MessageId"] for one in await sqs.receive()] == [second]
