"""Attributes of messages, and what Zaqar's clients and SQS's see of each other's messages."""

import pytest

from tests.sqs.conftest import Sqs
from tests.sqs.test_bad_input import binary, text

pytestmark = pytest.mark.anyio


GIVEN = {
    "a.text": text("grüße"),
    "number": text("-1.5e3", "Number.java.lang.Long"),
    "bytes": binary("AAH+/w=="),
}


async def test_the_md5_of_attributes_is_the_one_of_aws(sqs: Sqs) -> None:
    for kind, digest in (  # as AWS answered them: moto's tests
        ("Number", "235c5c510d26fb653d073faed50ae77c"),
        ("Number.java.lang.Long", "2e2e4876d8e0bd6b8c2c8f556831c349"),
    ):
        attributes = {"timestamp": text("1493147359900", kind)}
        sent = await sqs.call("SendMessage", MessageBody="x", MessageAttributes=attributes)
        assert sent["MD5OfMessageAttributes"] == digest
        (message,) = await sqs.receive(MessageAttributeNames=["All"])
        assert message["MD5OfMessageAttributes"] == digest


async def test_a_receiver_gets_the_attributes_that_it_asks_for(sqs: Sqs) -> None:
    await sqs.call("SendMessage", MessageBody="x", MessageAttributes=GIVEN)
    asked: list[tuple[list[str], set[str]]] = [
        (["All"], {"a.text", "number", "bytes"}),
        ([".*"], {"a.text", "number", "bytes"}),
        (["a.*"], {"a.text"}),
        (["n.*", "bytes"], {"number", "bytes"}),
        (["nope"], set()),
        ([], set()),
    ]
    for names, found in asked:
        (message,) = await sqs.receive(MessageAttributeNames=names, VisibilityTimeout=0)
        shown = message.get("MessageAttributes", {})
        assert shown == {name: GIVEN[name] for name in found}
        assert ("MD5OfMessageAttributes" in message) == bool(found)


async def test_the_bounds_of_attributes_hold(sqs: Sqs) -> None:
    most = {str(number): text() for number in range(10)}
    most |= {"0" * 256: most.pop("0"), "1": text("x" * 7_000)}
    await sqs.call("SendMessage", MessageBody="x", MessageAttributes=most)


async def test_system_attributes(sqs: Sqs) -> None:
    trace = {"AWSTraceHeader": text("Root=1-5759e988-bd862e3fe1be46a994272793")}
    sent = await sqs.call(
        "SendMessage", MessageBody="x", MessageSystemAttributes=trace, MessageGroupId="g"
    )
    assert "MD5OfMessageSystemAttributes" in sent
    assert "MD5OfMessageAttributes" not in sent
    (message,) = await sqs.receive(
        MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"], VisibilityTimeout=2
    )
    assert "MessageAttributes" not in message
    first = message["Attributes"]
    assert first["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert first["MessageGroupId"] == "g"
    assert first["ApproximateReceiveCount"] == "1"
    assert first.keys() >= {"SenderId", "SentTimestamp"}
    sqs.api.advance(3)
    (message,) = await sqs.receive(AttributeNames=["ALL"])
    second = message["Attributes"]
    assert second["ApproximateReceiveCount"] == "2"
    since = "ApproximateFirstReceiveTimestamp"
    assert abs(int(second[since]) - int(first[since])) <= 1
    assert int(first[since]) >= int(first["SentTimestamp"])


async def test_zaqar_receives_what_sqs_sends(sqs: Sqs) -> None:
    sent = await sqs.call(
        "SendMessage", MessageBody='say "é"', MessageAttributes=GIVEN, MessageGroupId="g"
    )
    (message,) = await sqs.api.claim(query="&details=true")
    assert (message["id"], message["body"]) == (sent["MessageId"], 'say "é"')
    assert message["headers"] == {
        "a.text": "grüße",
        "number:Number.java.lang.Long": "-1.5e3",
        "bytes:Binary": "AAH+/w==",
    }
    assert message["group"] == "g"


async def test_sqs_receives_what_zaqar_posts(sqs: Sqs) -> None:
    headers = {"plain": "x", "": "x", "a b": "x", "n:Number": "5", "b:Binary": "?", "empty": ""}
    for body, seen in (
        ('say "é"\n', 'say "é"\n'),
        ({"a": [1, "é"]}, '{"a": [1, "\\u00e9"]}'),
        (7, "7"),
        (None, "null"),
        ("", ""),
    ):
        (message_id,) = await sqs.api.post({"body": body, "headers": headers})
        (message,) = await sqs.receive(MessageAttributeNames=["All"])
        assert (message["MessageId"], message["Body"]) == (message_id, seen)
        assert message["MessageAttributes"] == {"plain": text(), "n": text("5", "Number")}
        await sqs.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])
        assert await sqs.api.browse("include_claimed=true&echo=true") == []


async def test_a_lease_is_a_lease_for_both(sqs: Sqs) -> None:
    await sqs.call("SendMessage", MessageBody="x")
    (held,) = await sqs.api.claim(ttl=60, grace=60)
    assert await sqs.receive() == []
    await sqs.api.call("DELETE", held["href"])
    await sqs.call("SendMessage", MessageBody="y")
    (message,) = await sqs.receive(VisibilityTimeout=50)
    assert await sqs.api.claim() == []
    sqs.api.advance(51)
    (held,) = await sqs.api.claim(ttl=60, grace=60)
    # The handle is old: it takes nothing away from Zaqar's consumer.
    await sqs.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])
    hidden = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    assert await sqs.error("ChangeMessageVisibility", **hidden) == "InvalidParameterValue"
    assert (await sqs.api.call("DELETE", held["href"])).status_code == 204
