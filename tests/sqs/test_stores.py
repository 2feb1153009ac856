"""What is promised under races, restarts and several servers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import MakeApi
from tests.services import RedisServer
from tests.sqs.conftest import ACCOUNT, HOST, Sqs

pytestmark = pytest.mark.anyio
SETTINGS: dict[str, Any] = {"sqs": True, "allowed_hosts": HOST}


async def test_a_lease_ends_is_extended_and_given_back(sqs: Sqs) -> None:
    await sqs.call("SendMessage", MessageBody="x")
    (first,) = await sqs.receive(VisibilityTimeout=1)
    await sqs.call(
        "ChangeMessageVisibility", ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=5
    )
    sqs.api.advance(3)
    assert await sqs.receive() == []
    sqs.api.advance(3)
    hidden = {"ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 5}
    assert await sqs.error("ChangeMessageVisibility", **hidden) == "MessageNotInflight"
    (second,) = await sqs.receive()
    assert await sqs.error("ChangeMessageVisibility", **hidden) == "InvalidParameterValue"
    await sqs.call("DeleteMessage", ReceiptHandle=first["ReceiptHandle"])  # another one holds it
    await sqs.call(
        "ChangeMessageVisibility", ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0
    )
    (third,) = await sqs.receive(AttributeNames=["All"], VisibilityTimeout=0)
    assert third["Attributes"]["ApproximateReceiveCount"] == "3"
    # Nobody holds it, so an old handle says that it is done.
    await sqs.call("DeleteMessage", ReceiptHandle=first["ReceiptHandle"])
    assert await sqs.receive() == []
    gone = {"ReceiptHandle": third["ReceiptHandle"], "VisibilityTimeout": 5}
    assert await sqs.error("ChangeMessageVisibility", **gone) == "InvalidParameterValue"


async def test_delays_are_honoured_and_waited_for(sqs: Sqs) -> None:
    await sqs.call("SendMessage", MessageBody="late", DelaySeconds=900)
    await sqs.call("SendMessage", MessageBody="now")
    (now,) = await sqs.receive()
    assert now["Body"] == "now"
    await sqs.call("DeleteMessage", ReceiptHandle=now["ReceiptHandle"])
    waiting = asyncio.create_task(sqs.receive(WaitTimeSeconds=20))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    sqs.api.advance(901)
    assert [one["Body"] for one in await waiting] == ["late"]


async def test_one_of_racing_creators_makes_a_queue_and_no_tag_is_lost(sqs: Sqs) -> None:
    made = await asyncio.gather(*(sqs.create("raced") for _ in range(8)))
    assert set(made) == {f"http://{HOST}/{ACCOUNT}/raced"}
    tags = [{str(number): "x"} for number in range(8)]
    await asyncio.gather(*(sqs.call("TagQueue", Tags=one) for one in tags))
    assert len((await sqs.call("ListQueueTags"))["Tags"]) == 8


async def test_a_handle_outlives_its_server(make_api: MakeApi, tmp_path: Path) -> None:
    settings = {**SETTINGS, "store": f"embedded:{tmp_path}/data"}
    async with make_api(**settings) as api:
        sqs = Sqs(api)
        await sqs.create()
        await sqs.call("SendMessage", MessageBody="x")
        (message,) = await sqs.receive(VisibilityTimeout=600)
    async with make_api(**settings) as again:
        later = Sqs(again)
        handle = {"QueueUrl": sqs.url, "ReceiptHandle": message["ReceiptHandle"]}
        await later.call("ChangeMessageVisibility", **handle, VisibilityTimeout=5)
        await later.call("DeleteMessage", **handle)
        again.advance(10)
        assert await later.receive(QueueUrl=sqs.url) == []


async def test_servers_of_one_store_know_each_others_queues_and_handles(
    make_api: MakeApi, redis_server: RedisServer
) -> None:
    settings = {**SETTINGS, "store": redis_server.url}
    async with make_api(**settings) as one, make_api(**settings) as two:
        first, second = Sqs(one), Sqs(two)
        second.url = first.url
        await first.create()
        await asyncio.gather(
            first.call("SendMessage", MessageBody="x"), second.call("SendMessage", MessageBody="y")
        )
        messages = await first.receive()
        assert len(messages) == 2
        for message in messages:
            await second.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])
        assert (await first.attributes("VisibilityTimeout"))["VisibilityTimeout"] == "30"
        for size in (1_024, 2_048):
            await second.call("SetQueueAttributes", Attributes={"MaximumMessageSize": str(size)})
            await first.call("SendMessage", MessageBody="x" * size)
        await second.call("DeleteQueue")
        # It knew the queue: a post must not make it again.
        assert await first.error("SendMessage", MessageBody="x") == "QueueDoesNotExist"
