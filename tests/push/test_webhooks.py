"""Signatures agree with the library of Standard Webhooks."""

import json
import time
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from zaqar_lite.domain.subscriptions import new_secret
from zaqar_lite.webhooks import InvalidSignature, sign, signed_headers, verify

BODY = json.dumps({"body": "ü"}, ensure_ascii=False).encode()


def test_their_library_accepts_ours() -> None:
    secret, older = new_secret(), new_secret()
    headers = signed_headers(
        [secret, older], message_id="msg_1", timestamp=int(time.time()), body=BODY
    )
    for known in (secret, older):
        assert Webhook(known).verify(BODY, headers) == {"body": "ü"}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, headers)


def test_ours_accepts_theirs() -> None:
    secret, now = new_secret(), datetime.now(UTC)
    headers = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": "v1a,nothing " + Webhook(secret).sign("msg_1", now, BODY.decode()),
    }
    assert verify(headers, BODY, secret) == "msg_1"


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "x"},
        {"webhook-id": "\udcff"},  # a byte that is no UTF-8, as some frameworks give it
        {"webhook-signature": "v1,\udcff"},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": ""},
    ],
)
def test_refuses_what_was_changed(change: dict[str, str]) -> None:
    secret = new_secret()
    headers = signed_headers([secret], message_id="msg_1", timestamp=1_000, body=BODY)
    assert verify(headers, BODY, secret, now=1_200) == "msg_1"
    for wrong, body, now in (({**headers, **change}, BODY, 1_000), (headers, b"{}", 1_000)):
        with pytest.raises(InvalidSignature):
            verify(wrong, body, secret, now=now)
    for late in (1_301, 699):
        with pytest.raises(InvalidSignature):
            verify(headers, BODY, secret, now=late)


def test_refuses_a_time_that_no_clock_has() -> None:
    headers = signed_headers([new_secret()], message_id="msg_1", timestamp=10**400, body=BODY)
    with pytest.raises(InvalidSignature, match="off"):
        verify(headers, BODY, new_secret())


def test_refuses_a_secret_that_is_none() -> None:
    for secret in ("whsec_***", "whsec_é", "whsec_", ""):  # whoever knows no secret signs by ""
        with pytest.raises(InvalidSignature, match="base64"):
            sign(secret, message_id="msg_1", timestamp=1, body=b"")
