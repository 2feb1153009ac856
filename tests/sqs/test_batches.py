"""Batches: up to ten entries, an outcome for each."""

from typing import Any

import pytest

from tests.api.conftest import MakeApi
from tests.sqs.conftest import HOST, Sqs
from tests.sqs.test_bad_input import entries
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.sql.messages import SqlMessageStore

pytestmark = pytest.mark.anyio


async def test_each_entry_has_an_outcome(sqs: Sqs) -> None:
    sent = [
        {"Id": "good", "MessageBody": "x"},
        {"Id": "empty", "MessageBody": ""},
        {"Id": "bad", "MessageBody": "\x01"},
        {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
        {"Id": "group", "MessageBody": "x", "MessageGroupId": ""},
        {"Id": "other", "MessageBody": "y"},
    ]
    answer = await sqs.call("SendMessageBatch", Entries=sent)
    stored = {one["Id"]: one["MessageId"] for one in answer["Successful"]}
    assert {one["Id"]: one["Code"] for one in answer["Failed"]} == {
        "empty": "MissingParameter",
        "bad": "InvalidMessageContents",
        "late": "InvalidParameterValue",
        "group": "InvalidParameterValue",
    }
    assert all(one["SenderFault"] and one["Message"] for one in answer["Failed"])

    first, second = await sqs.receive()
    assert stored == {"good": first["MessageId"], "other": second["MessageId"]}
    handle = first["ReceiptHandle"]
    held = [
        {"Id": "good", "ReceiptHandle": handle, "VisibilityTimeout": 0},
        {
            "Id": "forged",
            "ReceiptHandle": handle[:-1] + ("B" if handle[-1] == "A" else "A"),
            "VisibilityTimeout": 0,
        },
        {"Id": "long", "ReceiptHandle": handle, "VisibilityTimeout": 43_201},
        {"Id": "none", "ReceiptHandle": handle},
    ]
    answer = await sqs.call("ChangeMessageVisibilityBatch", Entries=held)
    assert answer["Successful"] == [{"Id": "good"}]
    assert {one["Id"]: one["Code"] for one in answer["Failed"]} == {
        "forged": "ReceiptHandleIsInvalid",
        "long": "InvalidParameterValue",
        "none": "MissingParameter",
    }
    answer = await sqs.call("DeleteMessageBatch", Entries=held[:2])
    assert [one["Id"] for one in answer["Successful"]] == ["good"]
    assert [one["Code"] for one in answer["Failed"]] == ["ReceiptHandleIsInvalid"]


async def test_a_batch_may_be_as_large_as_a_post(sqs: Sqs) -> None:
    large = [{"Id": str(n), "MessageBody": "é" * 65_536} for n in range(2)]  # 256 KiB
    assert len((await sqs.call("SendMessageBatch", Entries=large))["Successful"]) == 2
    await sqs.call("SendMessage", MessageBody="\x7f" * 262_144)
    error = await sqs.error("SendMessage", MessageBody="x" * 262_145)
    assert error == "InvalidParameterValue"
    await sqs.call("SetQueueAttributes", Attributes={"MaximumMessageSize": "1024"})
    mixed = [{"Id": "a", "MessageBody": "x" * 1_024}, {"Id": "b", "MessageBody": "x" * 1_025}]
    answer = await sqs.call("SendMessageBatch", Entries=mixed)
    assert [one["Id"] for one in answer["Failed"]] == ["b"]
    # Together they may have more than one message.
    assert "Failed" not in await sqs.call(
        "SendMessageBatch", Entries=[mixed[0], {**mixed[0], "Id": "c"}]
    )
    # What could not fit, however it is written, is not even read.
    for operation, size in (("SendMessage", 2_000_000), ("ReceiveMessage", 140_000)):
        refused = await sqs.ask(operation, MessageBody="x" * size)
        assert (refused.status, refused.error[0]) == (413, "InvalidParameterValue")


async def test_a_document_of_too_many_parts_is_not_decoded(sqs: Sqs) -> None:
    for parts in (b"{}," * 50_000 + b"{}", b'{"Id":"a"},' * 15_000 + b"{}"):
        answer = await sqs.raw("AmazonSQS.SendMessageBatch", b'{"Entries":[%b]}' % parts)
        assert answer.error[0] == "SerializationException"
        assert "too many parts" in answer.document["message"]
    # What a message holds are no parts, whatever it looks like.
    text = '{"a": [{}], "b\\": ""} ' * 11_000
    await sqs.call("SendMessage", MessageBody=text)
    (message,) = await sqs.receive()
    assert message["Body"] == text


async def test_a_message_may_have_what_sqs_allows_where_posts_may(make_api: MakeApi) -> None:
    async with make_api(sqs=True, max_messages_post_size=1_048_576, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create(MaximumMessageSize="1048576")
        await sqs.call("SendMessage", MessageBody="\x7f" * 1_048_576)
        assert await sqs.error("SendMessage", MessageBody="x" * 1_048_577) == (
            "InvalidParameterValue"
        )
        halves = [{"Id": str(n), "MessageBody": "x" * 524_288} for n in range(2)]
        await sqs.call("SendMessageBatch", Entries=halves)
        (found, *_) = await sqs.receive(MaxNumberOfMessages=1)
        assert len(found["Body"]) == 1_048_576


async def test_a_batch_tells_which_messages_the_store_did_not_delete(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, away = SqlMessageStore.delete, [True]

    async def fail(*given: Any, **named: Any) -> Any:
        if away:
            raise Unavailable("planted")
        return await delete(*given, **named)

    monkeypatch.setattr(SqlMessageStore, "delete", fail)
    async with make_api(sqs=True, allowed_hosts=HOST) as api:
        sqs = Sqs(api)
        await sqs.create()
        await sqs.call("SendMessageBatch", Entries=entries(2))
        (lapsed,) = await sqs.receive(MaxNumberOfMessages=1, VisibilityTimeout=1)
        (held,) = await sqs.receive(MaxNumberOfMessages=1, VisibilityTimeout=60)
        sqs.api.advance(2)
        both = [{"Id": name, **one} for name, one in (("lapsed", lapsed), ("held", held))]
        found = await sqs.call("DeleteMessageBatch", Entries=both)
        assert found["Successful"] == [{"Id": "held"}]
        (failed,) = found["Failed"]
        assert (failed["Id"], failed["Code"]) == ("lapsed", "ServiceUnavailable")
        assert not failed["SenderFault"]
        answer = await sqs.ask("DeleteMessage", ReceiptHandle=lapsed["ReceiptHandle"])
        assert (answer.status, answer.error[0]) == (503, "ServiceUnavailable")
        away.clear()
        assert len((await sqs.call("DeleteMessageBatch", Entries=both))["Successful"]) == 2
        sqs.api.advance(61)
        assert await sqs.receive() == []


async def test_handles_of_several_receives_are_settled_at_once(sqs: Sqs) -> None:
    await sqs.call("SendMessageBatch", Entries=entries(4))
    messages = [one for _ in range(4) for one in await sqs.receive(MaxNumberOfMessages=1)]
    held = [
        {"Id": f"{number}-{again}", "ReceiptHandle": one["ReceiptHandle"]}
        for number, one in enumerate(messages)
        for again in range(2)
    ]
    assert len((await sqs.call("DeleteMessageBatch", Entries=held))["Successful"]) == 8
    sqs.api.advance(31)
    assert await sqs.receive() == []
