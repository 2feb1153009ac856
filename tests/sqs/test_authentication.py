"""Requests that are signed with the secrets of keys, by botocore's own signer."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.api.conftest import Api, MakeApi
from tests.sqs.conftest import HOST, SqsAnswer, policy
from zaqar_lite.service.background import cancelled
from zaqar_lite.service.identity import authentication

if find_spec("botocore") is None and "CI" not in os.environ:
    pytest.skip("botocore is missing: tests/run --prepare", allow_module_level=True)

from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

pytestmark = pytest.mark.anyio


class Signing(NamedTuple):
    """A client that signs."""

    api: Api
    admin: str

    async def key(self, *grants: str, project: str | None = "demo") -> tuple[str, str]:
        """Make a key; answer its id, and the secret that signs."""
        answer = await self.api.call(
            "POST",
            "/v2/keys",
            {"grants": grants or ["*:*"], "project": project},
            Authorization=f"Bearer {self.admin}",
        )
        assert answer.status_code == 201, answer.text
        made = answer.json()
        return made["id"], made["aws_secret_access_key"]

    async def disable(self, key: tuple[str, str]) -> None:
        """Disable a key."""
        named = {"Authorization": f"Bearer {self.admin}"}
        await self.api.expect(200, "PATCH", f"/v2/keys/{key[0]}", {"disabled": True}, **named)

    def signed(
        self, key: tuple[str, str], operation: str, document: dict[str, Any], path: str = "/"
    ) -> AWSRequest:
        """A request that botocore signs."""
        request = AWSRequest(
            method="POST",
            url=f"http://{HOST}{path}",
            data=orjson.dumps(document),
            headers={
                "content-type": "application/x-amz-json-1.0",
                "x-amz-target": f"AmazonSQS.{operation}",
                "host": HOST,
            },
        )
        auth.SigV4Auth(Credentials(*key), "sqs", "eu-west-1").add_auth(request)
        return request

    async def send(self, request: AWSRequest, **changed: str) -> SqsAnswer:
        """Send a request that was signed, with some headers changed since."""
        headers = {**dict(request.headers), **{n.replace("_", "-"): v for n, v in changed.items()}}
        path = request.url.removeprefix(f"http://{HOST}")
        built = self.api.http.build_request("POST", path, content=request.data, headers=headers)
        if "X-Project-ID" not in changed:
            del built.headers["X-Project-ID"], built.headers["Client-ID"]
        answer = await self.api.http.send(built)
        return SqsAnswer(answer.status_code, dict(answer.headers), answer.content)

    async def ask(self, key: tuple[str, str], operation: str, **document: Any) -> SqsAnswer:
        """Ask for an operation."""
        return await self.send(self.signed(key, operation, document))


@pytest.fixture
async def signing(make_api: MakeApi, tmp_path: Path) -> AsyncIterator[Signing]:
    file = tmp_path / "admin.key"
    async with make_api(sqs=True, auth="keys", admin_key_file=file, host="localhost") as api:
        yield Signing(api, file.read_text().strip())


JOBS = f"http://{HOST}/demo/jobs"


async def test_a_key_signs_for_its_project(signing: Signing) -> None:
    key = await signing.key()
    request = signing.signed(key, "CreateQueue", {"QueueName": "jobs"})
    made = await signing.send(request, **{"X-Project-ID": "other"})  # which counts for nothing
    assert made.document == {"QueueUrl": JOBS}
    assert (await signing.ask(key, "SendMessage", QueueUrl=JOBS, MessageBody="x")).status == 200
    other = await signing.ask(key, "PurgeQueue", QueueUrl=f"http://{HOST}/other/jobs")
    assert (other.status, other.error) == (403, ("AccessDeniedException", "AccessDenied"))
    asked = {"QueueUrl": JOBS, "AttributeNames": ["QueueArn"]}
    shown = await signing.ask(key, "GetQueueAttributes", **asked)
    assert shown.document["Attributes"]["QueueArn"] == "arn:aws:sqs:eu-west-1:demo:jobs"
    await signing.disable(key)
    assert (await signing.ask(key, "ListQueues")).error[1] == "InvalidClientTokenId"
    key = await signing.key(project="my project")  # segments of paths are signed, too
    request = signing.signed(key, "CreateQueue", {"QueueName": "jobs"}, "/my%20project/")
    made = await signing.send(request)
    assert made.document == {"QueueUrl": f"http://{HOST}/my%20project/jobs"}


async def test_a_key_of_no_project_is_for_every_account(signing: Signing) -> None:
    key = await signing.key(project=None)
    for account in ("a", "b"):
        made = await signing.send(
            signing.signed(key, "CreateQueue", {"QueueName": "jobs"}, f"/{account}/")
        )
        assert made.document == {"QueueUrl": f"http://{HOST}/{account}/jobs"}


async def test_the_grants_of_a_key_hold(signing: Signing) -> None:
    await signing.ask(await signing.key(), "CreateQueue", QueueName="jobs")
    sends = {"MessageBody": "x"}
    source = {"SourceArn": "arn:aws:sqs:r:demo:jobs"}
    given: list[tuple[str, str, dict[str, Any], bool]] = [
        ("send:jobs", "SendMessage", sends, True),
        ("send:jobs*", "SendMessage", sends, True),
        ("send:others", "SendMessage", sends, False),
        ("receive:jobs", "SendMessage", sends, False),
        ("receive:jobs", "ReceiveMessage", {}, True),
        ("send:jobs", "ReceiveMessage", {}, False),
        ("read:jobs", "GetQueueAttributes", {"AttributeNames": ["All"]}, True),
        ("read:jobs", "DeleteQueue", {}, False),
        ("read:jobs", "StartMessageMoveTask", source, False),
    ]
    for grant, operation, document, is_allowed in given:
        key = await signing.key(grant)
        named = document if "SourceArn" in document else {**document, "QueueUrl": JOBS}
        answer = await signing.ask(key, operation, **named)
        assert answer.status == (200 if is_allowed else 403), (grant, operation, answer.document)
        assert is_allowed or answer.error[1] == "AccessDenied"


async def test_letters_go_only_where_the_key_may_send(signing: Signing) -> None:
    for name in ("jobs", "dead"):
        await signing.ask(await signing.key(), "CreateQueue", QueueName=name)
    named = {"QueueUrl": JOBS, "Attributes": {"RedrivePolicy": policy("dead", 3)}}
    moved = {"SourceArn": "arn:aws:sqs:r:demo:dead", "DestinationArn": "arn:aws:sqs:r:demo:jobs"}
    for operation, document, manages, sends in (
        ("SetQueueAttributes", named, "manage:jobs", "send:dead"),
        ("StartMessageMoveTask", moved, "manage:dead", "send:jobs"),
    ):
        refused = await signing.ask(await signing.key(manages), operation, **document)
        assert refused.error[1] == "AccessDenied"
        key = await signing.key(manages, sends)
        assert (await signing.ask(key, operation, **document)).status == 200


async def test_a_request_that_is_not_signed_is_refused(signing: Signing) -> None:
    request = signing.signed(await signing.key(), "ListQueues", {})
    for wrong in ("", "Bearer " + signing.admin, "AWS4-HMAC-SHA256 Credential=a/b"):
        answer = await signing.send(request, Authorization=wrong)
        assert (answer.status, answer.error[1]) == (403, "MissingAuthenticationToken")


async def test_a_wrong_key_or_secret_is_refused(signing: Signing) -> None:
    key_id, secret = await signing.key()
    wrong = await signing.ask((key_id, secret[:-1] + "-"), "ListQueues")
    assert (wrong.status, wrong.error) == (
        403,
        ("InvalidSignatureException", "SignatureDoesNotMatch"),
    )
    for unknown in ("0" * 16, "AKIAIOSFODNN7EXAMPLE"):
        answer = await signing.ask((unknown, secret), "ListQueues")
        assert answer.error == ("UnrecognizedClientException", "InvalidClientTokenId")


async def test_who_guesses_signatures_is_refused_late(
    make_api: MakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "SLOWED", 600.0)
    settings = {"admin_key_file": tmp_path / "admin.key", "max_failed_logins": 4}
    async with make_api(sqs=True, auth="keys", host="localhost", **settings) as api:
        signing = Signing(api, (tmp_path / "admin.key").read_text().strip())
        key_id, _ = await signing.key()
        guesses = (signing.ask((key_id, "guess"), "ListQueues") for _ in range(4))
        _, late = await asyncio.wait([asyncio.create_task(one) for one in guesses], timeout=1)
        assert late
        await cancelled(*late)


async def test_nothing_that_is_signed_can_be_changed(signing: Signing) -> None:
    key = await signing.key()
    request = signing.signed(key, "ListQueues", {})
    for changed in (
        {"x_amz_target": "AmazonSQS.CreateQueue"},
        {"host": "localhost"},
        {"x_amz_security_token": "added"},
        {"x_amz_date": datetime.now(UTC).strftime("%Y%m%dT%H%M") + "00Z"},
    ):
        if changed.get("x_amz_date") == request.headers["X-Amz-Date"]:
            continue
        answer = await signing.send(request, **changed)
        assert answer.error[1] == "SignatureDoesNotMatch", changed
    request.data = b'{"MaxResults":1}'
    assert (await signing.send(request)).error[1] == "SignatureDoesNotMatch"
    request = signing.signed(key, "ListQueues", {})
    request.url += "other/"
    assert (await signing.send(request)).error[1] == "SignatureDoesNotMatch"


async def test_clocks_may_differ_by_five_minutes(
    signing: Signing, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await signing.key()
    for seconds, is_good in ((290, True), (-290, True), (310, False), (-310, False)):
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        with monkeypatch.context() as moved:
            moved.setattr(auth, "get_current_datetime", lambda at=at: at)
            answer = await signing.ask(key, "ListQueues")
        assert answer.status == (200 if is_good else 403)
        assert is_good or answer.error[1] == "RequestTimeTooSkewed"


async def test_a_receiver_that_waits_is_known_until_its_key_is_disabled(
    signing: Signing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "LOOK_EVERY", 0.02)
    everything, key = await signing.key(), await signing.key("receive:jobs")
    await signing.ask(everything, "CreateQueue", QueueName="jobs")

    def receive() -> "asyncio.Task[SqsAnswer]":
        asked = signing.ask(key, "ReceiveMessage", QueueUrl=JOBS, WaitTimeSeconds=20)
        return asyncio.create_task(asked)

    waiting = receive()
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await signing.ask(everything, "SendMessage", QueueUrl=JOBS, MessageBody="x")
    assert len((await waiting).document["Messages"]) == 1
    waiting = receive()
    await asyncio.sleep(0.1)
    await signing.disable(key)
    answer = await asyncio.wait_for(waiting, 10)
    assert (answer.status, answer.error[0]) == (401, "AccessDeniedException")
