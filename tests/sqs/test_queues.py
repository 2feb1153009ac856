"""Queues over SQS's protocol: their attributes, tags and names."""

from typing import Any

import orjson
import pytest

from tests.api.conftest import MakeApi
from tests.sqs.conftest import ACCOUNT, HOST, Sqs, policy

pytestmark = pytest.mark.anyio
DEFAULTS = {
    "VisibilityTimeout": "30",
    "ReceiveMessageWaitTimeSeconds": "0",
    "DelaySeconds": "0",
    "MessageRetentionPeriod": "345600",
    "MaximumMessageSize": "262144",
    "SqsManagedSseEnabled": "false",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
}


async def test_a_new_queue_has_the_attributes_of_sqs(sqs: Sqs) -> None:
    shown = await sqs.attributes()
    assert shown.pop("CreatedTimestamp") == shown.pop("LastModifiedTimestamp")
    assert shown.pop("QueueArn") == f"arn:aws:sqs:us-east-1:{ACCOUNT}:{sqs.api.queue}"
    assert shown == DEFAULTS
    assert await sqs.attributes("DelaySeconds") == {"DelaySeconds": "0"}
    assert await sqs.call("GetQueueAttributes") == {}
    assert await sqs.error("GetQueueAttributes", AttributeNames=["Nope"]) == "InvalidAttributeName"


async def test_a_number_is_kept_within_its_bounds(sqs: Sqs) -> None:
    for name, least, most in (
        ("VisibilityTimeout", 0, 43_200),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("DelaySeconds", 0, 900),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("MaximumMessageSize", 1_024, 262_144),
    ):
        for value in (least, most):
            await sqs.call("SetQueueAttributes", Attributes={name: str(value)})
            assert await sqs.attributes(name) == {name: str(value)}
        for wrong in (str(least - 1), str(most + 1), "", "x", "1.5", "\uff19", "9" * 20):
            error = await sqs.error("SetQueueAttributes", Attributes={name: wrong})
            # A size of 262145 SQS allows, and this server does not.
            is_ours = (name, wrong) == ("MaximumMessageSize", "262145")
            assert error == ("InvalidParameterValue" if is_ours else "InvalidAttributeValue"), wrong
        assert await sqs.attributes(name) == {name: str(most)}


async def test_creating_a_queue_again_answers_it_unless_it_differs(sqs: Sqs) -> None:
    name = sqs.api.queue
    for given in ({}, {"VisibilityTimeout": "30"}, {"DelaySeconds": "0", "RedrivePolicy": ""}):
        assert (await sqs.create(**given)).endswith(name)
    url = f"/{ACCOUNT}/"
    for different in ({"VisibilityTimeout": "31"}, {"MessageRetentionPeriod": "60"}):
        document = orjson.dumps({"QueueName": name, "Attributes": different})
        answer = await sqs.raw("AmazonSQS.CreateQueue", document, url)
        assert answer.error == ("QueueNameExists", "QueueAlreadyExists")
    assert (await sqs.attributes("VisibilityTimeout"))["VisibilityTimeout"] == "30"


async def test_a_redrive_policy_is_the_queues_own(sqs: Sqs) -> None:
    dead = await sqs.create("dead")
    given = policy("dead", "3")
    await sqs.call("SetQueueAttributes", Attributes={"RedrivePolicy": given})
    shown = orjson.loads((await sqs.attributes("RedrivePolicy"))["RedrivePolicy"])
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
    assert shown == {"deadLetterTargetArn": arn, "maxReceiveCount": 3}
    metadata = (await sqs.api.call("GET", "")).json()
    assert (metadata["_dead_letter_queue"], metadata["_max_claim_count"]) == ("dead", 3)
    asked = {"operation": "ListDeadLetterSourceQueues", "QueueUrl": dead}
    assert await sqs.call(**asked) == {"queueUrls": [sqs.url]}
    other = await sqs.create("other", RedrivePolicy=given)
    page = await sqs.call(**asked, MaxResults=1)
    last = await sqs.call(**asked, NextToken=page["NextToken"])
    assert {*page["queueUrls"], *last["queueUrls"]} == {sqs.url, other}
    of_another_queue = {**asked, "QueueUrl": other, "NextToken": page["NextToken"]}
    assert await sqs.error(**of_another_queue) == "InvalidParameterValue"
    await sqs.create(RedrivePolicy=given)  # the same, whatever the region
    itself = {"RedrivePolicy": policy(sqs.api.queue, 3)}
    assert await sqs.error("SetQueueAttributes", Attributes=itself) == "InvalidAttributeValue"
    await sqs.call("SetQueueAttributes", Attributes={"RedrivePolicy": ""})
    assert await sqs.attributes("RedrivePolicy") == {}
    assert await sqs.call(**asked) == {"queueUrls": [other]}


async def test_queues_are_listed_by_prefix_and_page(sqs: Sqs) -> None:
    names = [f"list-{number:02}" for number in range(25)]
    for name in ("lis", "list", "lisu", *names):
        await sqs.create(name)

    async def listed(**document: Any) -> dict[str, Any]:
        content = orjson.dumps(document)
        answer = await sqs.raw("AmazonSQS.ListQueues", content, f"/{ACCOUNT}/")
        assert answer.status == 200, answer.document
        return answer.document

    urls = [f"http://{HOST}/{ACCOUNT}/{name}" for name in names]
    assert await listed(QueueNamePrefix="list-") == {"QueueUrls": urls}
    assert len((await listed())["QueueUrls"]) == 29
    for none_has_it in ("nope", "..", "a\0", "\ue000", "x" * 65):
        assert await listed(QueueNamePrefix=none_has_it) == {}
    found, page = [], dict[str, Any]()
    while not page or "NextToken" in page:
        token = page.get("NextToken")  # the last one is for a list with this prefix alone
        page = await listed(QueueNamePrefix="list-", MaxResults=10, NextToken=token)
        found += page["QueueUrls"]
    assert found == urls
    for wrong in (
        {"MaxResults": 0},
        {"MaxResults": 1_001},
        *({"NextToken": one} for one in ("?", "a/b", "list-01", token)),
    ):
        answer = await sqs.raw("AmazonSQS.ListQueues", orjson.dumps(wrong))
        assert answer.error[0] == "InvalidParameterValue", wrong


async def test_tags_are_added_and_taken_off(sqs: Sqs) -> None:
    await sqs.call("TagQueue", Tags={"a": "1", "b": "2"})
    await sqs.call("TagQueue", Tags={"b": "3"})
    assert await sqs.call("ListQueueTags") == {"Tags": {"a": "1", "b": "3"}}
    await sqs.call("UntagQueue", TagKeys=["a", "nope"])
    assert await sqs.call("ListQueueTags") == {"Tags": {"b": "3"}}
    await sqs.call("TagQueue", Tags={str(number): "x" * 256 for number in range(49)})
    for wrong in ({"more": "x"}, {"": "x"}, {"k" * 129: "x"}, {"b": "x" * 257}):
        assert await sqs.error("TagQueue", Tags=wrong) == "InvalidParameterValue"


async def test_a_queue_is_deleted_and_purged(sqs: Sqs) -> None:
    await sqs.call("SendMessage", MessageBody="x")
    await sqs.call("SendMessage", MessageBody="later", DelaySeconds=60)
    await sqs.receive()
    counts = ("ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
    assert set((await sqs.attributes(*counts)).values()) == {"1"}
    await sqs.call("PurgeQueue")
    assert set((await sqs.attributes(*counts)).values()) == {"0"}
    await sqs.call("DeleteQueue")
    for operation, document in (
        ("DeleteQueue", {}),
        ("PurgeQueue", {}),
        ("GetQueueAttributes", {}),
        ("SetQueueAttributes", {"Attributes": {}}),
        ("TagQueue", {"Tags": {}}),
        ("ListQueueTags", {}),
        ("SendMessage", {"MessageBody": "x"}),
        ("SendMessageBatch", {"Entries": [{"Id": "a", "MessageBody": "x"}]}),
        ("ReceiveMessage", {}),
        ("DeleteMessage", {"ReceiptHandle": "x"}),
        ("ChangeMessageVisibility", {"ReceiptHandle": "x", "VisibilityTimeout": 1}),
        ("ListDeadLetterSourceQueues", {}),
        ("StartMessageMoveTask", {"SourceArn": f"arn:aws:sqs:r:{ACCOUNT}:{sqs.api.queue}"}),
    ):
        assert await sqs.error(operation, **document) == "QueueDoesNotExist", operation


async def test_a_queue_that_zaqar_made_is_one_of_sqs_and_the_reverse(sqs: Sqs) -> None:
    await sqs.api.call("PUT", "/v2/queues/zaqars", {"_default_message_ttl": 600})
    url = await sqs.create("zaqars", MessageRetentionPeriod="600")
    shown = await sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    assert "CreatedTimestamp" not in shown["Attributes"]
    # A delay is ignored there, as Zaqar ignores it.
    await sqs.call("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=900)
    assert len(await sqs.receive(QueueUrl=url)) == 1
    # What somebody else wrote where SQS's own options are counts for nothing.
    await sqs.api.call("PUT", "/v2/queues/odd", {"_sqs": {"VisibilityTimeout": "x"}})
    odd = f"http://x/{ACCOUNT}/odd"
    assert await sqs.receive(QueueUrl=odd) == []
    await sqs.call("SetQueueAttributes", QueueUrl=odd, Attributes={"VisibilityTimeout": "7"})
    metadata = (await sqs.api.call("GET", "")).json()
    assert metadata["_honour_delays"] is True
    assert metadata["_sqs"].keys() == {"CreatedTimestamp", "LastModifiedTimestamp"}
    answer = await sqs.api.call("PUT", "/v2/queues/copy", metadata)
    assert "Zaqar-Lite-Warning" not in answer.headers
    # Attributes that do nothing are kept.
    allowed = '{"redrivePermission":"allowAll"}'
    given = {"SqsManagedSseEnabled": "true", "RedriveAllowPolicy": allowed}
    await sqs.call("SetQueueAttributes", Attributes={**given, "Policy": "", "KmsMasterKeyId": ""})
    assert await sqs.attributes(*given) == given


async def test_behind_a_gateway_the_project_is_the_gateways(make_api: MakeApi) -> None:
    secret = "s" * 32
    async with make_api(sqs=True, gateway_secret=secret, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        content = orjson.dumps({"QueueName": "jobs"})
        assert (await sqs.raw("AmazonSQS.CreateQueue", content)).error[1] == "AccessDenied"
        gateway = {"X-Gateway-Secret": secret}
        answer = await sqs.raw("AmazonSQS.CreateQueue", content, **gateway)
        assert answer.error[1] == "AccessDenied"
        for wrong in ({"X-Project-ID": "mine"}, {**gateway, "X-Project-ID": ""}):
            answer = await sqs.raw("AmazonSQS.CreateQueue", content, **wrong)
            assert answer.error[1] == "AccessDenied", "it came through no gateway"
        headers = {**gateway, "X-Project-ID": "mine"}
        made = await sqs.raw("AmazonSQS.CreateQueue", content, **headers)
        assert made.document == {"QueueUrl": f"http://{HOST}/mine/jobs"}
        other = orjson.dumps({"QueueUrl": f"http://{HOST}/other/jobs"})
        assert (await sqs.raw("AmazonSQS.PurgeQueue", other, **headers)).error[1] == "AccessDenied"
