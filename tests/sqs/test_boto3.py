"""boto3, unmodified, against a real server process."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.docs.pages import README, URL, commands
from tests.server import ServerProcess

if find_spec("boto3") is None and "CI" not in os.environ:
    pytest.skip("boto3 is missing: tests/run --prepare", allow_module_level=True)

import boto3


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client that knows nothing but its environment: the two lines of the README."""
    command, setting = (line for line in commands(README) if "sqs" in line.lower())
    with (
        ServerProcess("memory://", *command.split()[2:]) as server,
        pytest.MonkeyPatch.context() as set_,
    ):
        name, _, url = setting.removeprefix("export ").partition("=")
        set_.setenv(name, url.replace(URL, server.url))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            set_.setenv(name, "any")
        set_.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        yield boto3.client("sqs")


@pytest.fixture
def queue(client: Any, request: pytest.FixtureRequest) -> str:
    url: str = client.create_queue(QueueName=request.node.name[:60])["QueueUrl"]
    return url


def test_a_message_is_sent_received_and_deleted(client: Any, queue: str) -> None:
    sent = client.send_message(
        QueueUrl=queue,
        MessageBody="hello",
        MessageAttributes={
            "text": {"DataType": "String", "StringValue": "ä"},
            "count": {"DataType": "Number", "StringValue": "12.5"},
            "bytes": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        },
    )
    received = client.receive_message(
        QueueUrl=queue, MessageAttributeNames=["All"], WaitTimeSeconds=5
    )
    (message,) = received["Messages"]
    assert message["Body"] == "hello"
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttributes"]["bytes"]["BinaryValue"] == b"\x00\xff"
    client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in client.receive_message(QueueUrl=queue)


def test_errors_are_the_ones_that_programs_catch(client: Any) -> None:
    with pytest.raises(client.exceptions.QueueDoesNotExist) as caught:
        client.get_queue_url(QueueName="nope")
    code = caught.value.response["Error"]["Code"]
    assert code == "AWS.SimpleQueueService.NonExistentQueue"
