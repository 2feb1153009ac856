"""The form of requests, answers and errors, and who a queue belongs to."""

import pytest

from tests.api.conftest import MakeApi
from tests.sqs.conftest import ACCOUNT, HOST, Sqs

pytestmark = pytest.mark.anyio


async def test_an_error_has_both_forms(sqs: Sqs) -> None:
    answer = await sqs.ask("SendMessage", QueueUrl=f"http://x/{ACCOUNT}/nope", MessageBody="x")
    assert answer.status == 400
    assert answer.document["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    old = "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert answer.headers["x-amzn-query-error"] == old
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-requestid"] == answer.headers["x-openstack-request-id"]


async def test_the_url_has_the_name_by_which_the_client_calls(sqs: Sqs) -> None:
    made = await sqs.create("jobs")
    assert made == f"http://{HOST}/{ACCOUNT}/jobs"
    # Whatever the host of the URL is, the queue is found.
    await sqs.call("SendMessage", QueueUrl=f"https://other/{ACCOUNT}/jobs", MessageBody="x")


async def test_a_malformed_request_is_refused(sqs: Sqs) -> None:
    for operation, content, error in (
        ("Nope", b"{}", "UnknownOperationException"),
        ("AddPermission", b"{}", "UnsupportedOperation"),
        ("RemovePermission", b"{}", "UnsupportedOperation"),
        ("ListQueues", b"[]", "SerializationException"),
        ("ListQueues", b'{"QueueNamePrefix": "\xff"}', "SerializationException"),
        ("ListQueues", b'{"QueueNamePrefix": "\\ud800"}', "SerializationException"),
        ("ListQueues", b"[" * 100_000, "SerializationException"),
        ("SendMessage", b'{"MessageBody": "x"}', "MissingParameter"),
        ("PurgeQueue", b'{"QueueUrl": "http://x/y"}', "InvalidAddress"),
        ("PurgeQueue", b'{"QueueUrl": "http://[x/y"}', "InvalidAddress"),
        ("PurgeQueue", b'{"QueueUrl": "http://x/demo/a%2Fb"}', "InvalidParameterValue"),
        ("PurgeQueue", b'{"QueueUrl": "http://x/~deliveries/a"}', "InvalidAddress"),
    ):
        answer = await sqs.raw(f"AmazonSQS.{operation}", content)
        assert answer.error[0] == error, (operation, content[:50])
    other = await sqs.raw("DynamoDB_20120810.ListTables", b"{}")
    assert other.error[0] == "UnknownOperationException"


async def test_a_server_without_the_protocol_says_so_in_its_form(make_api: MakeApi) -> None:
    async with make_api(allowed_hosts=HOST) as api:
        answer = await Sqs(api).ask("CreateQueue", QueueName="q")
    assert answer.status == 405
    assert answer.document["__type"] == "UnsupportedOperation"
    assert "--sqs" in answer.document["message"]
    async with make_api(sqs=True) as api:
        refused = await api.expect(405, "PUT", "/", X_Amz_Target="AmazonSQS.CreateQueue")
    assert "--sqs" not in refused.text
