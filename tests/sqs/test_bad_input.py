"""Whatever a document holds, no operation fails by it: it succeeds, or says what is wrong."""

import random
from typing import Any

import orjson
import pytest

from tests.api.conftest import MakeApi
from tests.sqs.conftest import ACCOUNT, HOST, Sqs

pytestmark = pytest.mark.anyio
OPERATIONS = (
    *("CreateQueue", "GetQueueUrl", "ListQueues", "PurgeQueue", "GetQueueAttributes"),
    *("SetQueueAttributes", "TagQueue", "UntagQueue", "ListQueueTags", "SendMessage"),
    *("SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch"),
    *("ChangeMessageVisibility", "ChangeMessageVisibilityBatch", "ListDeadLetterSourceQueues"),
    *("StartMessageMoveTask", "ListMessageMoveTasks", "CancelMessageMoveTask"),
)
NAMES = (
    *("QueueName", "QueueUrl", "Attributes", "AttributeNames", "tags", "Tags", "TagKeys", "Id"),
    *("QueueNamePrefix", "MaxResults", "NextToken", "MessageBody", "DelaySeconds", "Entries"),
    *("MessageAttributes", "MessageSystemAttributes", "MessageGroupId", "MaxNumberOfMessages"),
    *("VisibilityTimeout", "WaitTimeSeconds", "MessageAttributeNames", "ReceiptHandle"),
    *("SourceArn", "DestinationArn", "MaxNumberOfMessagesPerSecond", "TaskHandle", "DataType"),
    *("QueueOwnerAWSAccountId", "MessageSystemAttributeNames", "StringValue", "BinaryValue"),
    *("RedrivePolicy", "MessageRetentionPeriod", "All", "AWSTraceHeader", "deadLetterTargetArn"),
)
TEXTS = (
    *(
        "",
        "x",
        "All",
        ".*",
        "0",
        "-1",
        "99999999999999999999",
        "é\u2028",
        "a" * 300,
        "\x00",
        "/",
        ":",
    ),
    *("String", "Number", "Binary", "String.", "=", "AAAA", "{}", "[", "null", "~", "a\ud7ff"),
    *("\ue000", "a\x00", ".", "..", "q."),
    *("arn:aws:sqs:r:demo:jobs", "arn:aws:sqs:r::", "http://x/demo/jobs", "http://[", "jobs"),
    *("http://x/%00/jobs", "http://x/~deliveries/jobs", "jobs.fifo", "QueueArn", "aGkgaGk="),
    '{"deadLetterTargetArn": "arn:aws:sqs:r:demo:jobs", "maxReceiveCount": 1}',
)
NUMBERS = (0, 1, -1, 10, 11, 43_200, 1 << 62, -(1 << 62), 1.5, 1e300, True, None)


def made_up(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.random()
    if depth and kind < 0.35:
        count = chance.randrange(4)
        return {chance.choice(NAMES): made_up(chance, depth - 1) for _ in range(count)}
    if depth and kind < 0.5:
        return [made_up(chance, depth - 1) for _ in range(chance.choice((0, 1, 2, 11)))]
    return chance.choice(TEXTS) if kind < 0.8 else chance.choice(NUMBERS)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_no_document_makes_the_server_fail(make_api: MakeApi, operation: str) -> None:
    chance = random.Random(operation)
    async with make_api(sqs=True, allowed_hosts=HOST, max_wait=0) as api:
        sqs = Sqs(api)
        await sqs.create("jobs")
        for _ in range(150):
            document = {name: made_up(chance) for name in chance.sample(NAMES, 6)}
            if chance.random() < 0.7:
                document |= {"QueueUrl": f"http://x/{ACCOUNT}/jobs", "QueueName": "jobs"}
            if chance.random() < 0.5:
                document |= {"ReceiptHandle": "x", "MessageBody": "x", "Attributes": {}}
            answer = await sqs.raw(f"AmazonSQS.{operation}", orjson.dumps(document))
            assert answer.status in (200, 400, 403), (answer.document, document)
