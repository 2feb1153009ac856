"""Messages over SQS's protocol: send, receive, hide and delete."""

import orjson
import pytest

from tests.sqs.conftest import Sqs

pytestmark = pytest.mark.anyio


async def test_what_is_sent_is_received_and_deleted(sqs: Sqs) -> None:
    sent = await sqs.call("SendMessage", MessageBody="hallö")
    assert sent["MD5OfMessageBody"] == "a038e2387b90d029e94c18a2b6be3cc3"
    (message,) = await sqs.receive()
    assert message["MessageId"] == sent["MessageId"]
    assert (message["Body"], message["MD5OfBody"]) == ("hallö", sent["MD5OfMessageBody"])
    assert message.keys() == {"MessageId", "ReceiptHandle", "Body", "MD5OfBody"}
    assert await sqs.receive() == []
    await sqs.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])
    sqs.api.advance(31)
    assert await sqs.receive() == []
    await sqs.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])


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


async def test_a_message_that_is_received_for_no_time_is_there_at_once(sqs: Sqs) -> None:
    await sqs.call("SendMessage", MessageBody="x")
    for _ in range(2):
        (message,) = await sqs.receive(VisibilityTimeout=0)
    # Nobody holds it now, so whoever had it last may still say that it is done.
    await sqs.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])
    assert await sqs.receive() == []


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
