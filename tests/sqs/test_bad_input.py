"""Whatever a document holds, no operation fails by it: it succeeds, or says what is wrong."""

import random
from typing import Any

import orjson
import pytest

from tests.api.conftest import MakeApi
from tests.sqs.conftest import ACCOUNT, HOST, Sqs, policy

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


def text(value: str = "x", kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


def binary(value: str, kind: str = "Binary") -> dict[str, str]:
    return {"DataType": kind, "BinaryValue": value}


def entries(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"Id": f"e-{number}", "MessageBody": str(number), **fields} for number in range(count)]


ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
WRONG, NONE, ATTRIBUTE = "InvalidParameterValue", "MissingParameter", "InvalidAttributeValue"
BODY, CREATED = {"MessageBody": "a"}, {"QueueName": "made"}
OLD = {"QueueDoesNotExist": "NonExistentQueue", "AccessDeniedException": "AccessDenied"}
"""Codes that are none of the shapes' own names."""
WRONG_ATTRIBUTES: tuple[dict[str, Any], ...] = (
    *({name: text()} for name in ("", ".a", "a.", "a..b", "a:b", "AWS.a", "amazon.a")),
    *({name: text()} for name in ("zaqar-group", "a" * 257)),
    *({"a": text(kind=kind)} for kind in ("", "Text", "String.")),
    *({"a": one} for one in (text(""), text("x", "Number"), text("x" * 8_192))),
    *({"a": one} for one in (binary("?"), binary(""), binary("AA==", "String"))),
    {"a": {**text(), "BinaryValue": "AA=="}},
    {str(number): text() for number in range(11)},
)
REFUSED: tuple[tuple[str, str, list[dict[str, Any]]], ...] = (
    ("SendMessage", NONE, [{"MessageBody": ""}, {}]),
    ("SendMessage", "InvalidMessageContents", [{"MessageBody": "a\x00"}]),
    ("SendMessage", WRONG, [{**BODY, "DelaySeconds": one} for one in (901, -1)]),
    ("SendMessage", WRONG, [{**BODY, "MessageGroupId": one} for one in ("", "g" * 129)]),
    ("SendMessage", WRONG, [{**BODY, "MessageAttributes": one} for one in WRONG_ATTRIBUTES]),
    (
        "SendMessage",
        "InvalidMessageContents",
        [{**BODY, "MessageAttributes": {"a": text("\x01")}}],
    ),
    (
        "SendMessage",
        "UnsupportedOperation",
        [
            {**BODY, "MessageDeduplicationId": "g"},
            {**BODY, "MessageAttributes": {"a": {**text(), "StringListValues": ["x"]}}},
        ],
    ),
    ("SendMessage", WRONG, [{**BODY, "MessageSystemAttributes": {"Other": text()}}]),
    ("SendMessage", "SerializationException", [{"MessageBody": ["a"]}]),
    ("ReceiveMessage", WRONG, [{"MaxNumberOfMessages": one} for one in (11, 0)]),
    ("ReceiveMessage", WRONG, [{"VisibilityTimeout": 43_201}, {"WaitTimeSeconds": 21}]),
    ("ReceiveMessage", "InvalidAttributeName", [{"AttributeNames": ["Nope"]}]),
    ("DeleteMessage", "ReceiptHandleIsInvalid", [{"ReceiptHandle": one * 96} for one in "0é"]),
    ("DeleteMessage", NONE, [{"ReceiptHandle": ""}, {}]),
    ("ChangeMessageVisibility", NONE, [{"VisibilityTimeout": 1}]),
    ("SendMessageBatch", "EmptyBatchRequest", [{"Entries": []}]),
    ("SendMessageBatch", "TooManyEntriesInBatchRequest", [{"Entries": entries(11)}]),
    ("SendMessageBatch", "BatchEntryIdsNotDistinct", [{"Entries": entries(1) * 2}]),
    (
        "SendMessageBatch",
        "InvalidBatchEntryId",
        [{"Entries": entries(1, Id=one)} for one in ("a b", "", "a" * 81)],
    ),
    ("SendMessageBatch", "InvalidBatchEntryId", [{"Entries": [{"MessageBody": "x"}]}]),
    ("SendMessageBatch", "SerializationException", [{"Entries": entries(1, MessageBody=1)}]),
    (
        "SendMessageBatch",
        "BatchRequestTooLong",
        [{"Entries": entries(3, MessageBody="x" * 87_382)}],
    ),
    ("StartMessageMoveTask", "QueueDoesNotExist", [{"SourceArn": ARN + "x"}]),
    ("StartMessageMoveTask", WRONG, [{"SourceArn": "x"}, {"SourceArn": ARN[:-4] + "jobs"}]),
    (
        "StartMessageMoveTask",
        "QueueDoesNotExist",
        [{"SourceArn": ARN, "DestinationArn": ARN + "x"}],
    ),
    (
        "StartMessageMoveTask",
        WRONG,
        [{"SourceArn": ARN, "MaxNumberOfMessagesPerSecond": one} for one in (501, 0)],
    ),
    ("ListMessageMoveTasks", WRONG, [{"SourceArn": ARN, "MaxResults": one} for one in (11, 0)]),
    ("CancelMessageMoveTask", "ResourceNotFoundException", [{"TaskHandle": ARN + "/x"}]),
    ("CancelMessageMoveTask", WRONG, [{"TaskHandle": "é"}]),
    ("CreateQueue", "UnsupportedOperation", [{"QueueName": "made.fifo"}]),
    ("CreateQueue", WRONG, [{"QueueName": one} for one in ("a b", "", "a" * 65)]),
    *(
        ("CreateQueue", error, [{**CREATED, "Attributes": one} for one in given])
        for error, given in (
            ("UnsupportedOperation", [{"FifoQueue": "true"}, {"Policy": "{}"}]),
            ("UnsupportedOperation", [{"KmsMasterKeyId": "alias/x"}]),
            ("InvalidAttributeName", [{"ContentBasedDeduplication": "true"}, {"Nope": "1"}]),
            (ATTRIBUTE, [{"VisibilityTimeout": "x" * 5_000}]),
            (ATTRIBUTE, [{"RedrivePolicy": one} for one in ("{}", "[", '{"x":' + "[" * 2_000)]),
            (ATTRIBUTE, [{"RedrivePolicy": policy("nope", 3)}]),
            (ATTRIBUTE, [{"RedrivePolicy": policy("made", count)} for count in (3, 0, 1_001)]),
            ("AccessDeniedException", [{"RedrivePolicy": policy("nope", 3, "other")}]),
        )
    ),
)
"""Operations, errors, and the documents that are refused so; others there are in the code."""


async def test_what_breaks_a_rule_is_refused_and_changes_nothing(make_api: MakeApi) -> None:
    async with make_api(sqs=True, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create("dead")
        sqs.url = await sqs.create("jobs", RedrivePolicy=policy("dead", 2))
        for operation, error, documents in REFUSED:
            for document in documents:
                named = {**document, "QueueUrl": sqs.url}
                path = f"/{ACCOUNT}/" if operation == "CreateQueue" else "/"
                answer = await sqs.raw(f"AmazonSQS.{operation}", orjson.dumps(named), path)
                assert answer.error[0] == error, (operation, document, answer.document)
                old = OLD.get(error, error)
                assert answer.error[1] in (old, f"AWS.SimpleQueueService.{old}")
        assert await sqs.receive() == []
        listed = await sqs.raw("AmazonSQS.ListQueues", b"{}", f"/{ACCOUNT}/")
        assert [url.rpartition("/")[2] for url in listed.document["QueueUrls"]] == ["dead", "jobs"]


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
