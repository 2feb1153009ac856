"""Mail goes out by a real SMTP server."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller

from tests.api.conftest import MakeApi
from tests.push.test_delivering import attempts_of
from tests.services.process import free_port
from tests.test_tls import make_certificate
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Invalid
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import Subscription, check_subscriber
from zaqar_lite.push.mail import Mail, Smtp
from zaqar_lite.server.loading import load
from zaqar_lite.service.delivery import attempt
from zaqar_lite.service.delivery.attempt import (
    Answer,
    DeliveryOutcome,
    DeliverySender,
    Notification,
)
from zaqar_lite.service.delivery.outbox import Delivery

pytestmark = pytest.mark.anyio


class Mailbox:
    """Keeps what it is sent; `refuses` is what it answers instead."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.recipients: list[list[str]] = []
        self.refuses: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refuses:
            return self.refuses.pop(0)
        self.mails.append(BytesParser().parsebytes(envelope.content))
        self.recipients.append(envelope.rcpt_tos)
        return "250 OK"


@contextmanager
def receiving(**options: Any) -> Iterator[tuple[Mailbox, int]]:
    """A mail server that keeps what it is sent, and its port."""
    box, port = Mailbox(), free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    with receiving() as found:
        yield found


async def test_sends_a_mail_from_the_servers_own_sender(
    make_api: MakeApi,
    mailbox: tuple[Mailbox, int],
) -> None:
    box, port = mailbox
    box.refuses = ["451 later"]
    url = f"smtp+plain://127.0.0.1:{port}"
    async with make_api(smtp_url=url, smtp_sender="queue@example.org") as api:
        policy = {"minimum_delay": 0, "maximum_delay": 10}
        options = {"subject": "not this", "from": "not@me.org", "_retry_policy": policy}
        made = await api.call(
            "POST",
            "subscriptions",
            {"subscriber": "mailto:a@b.org?subject=An%20order", "options": options},
        )
        assert made.status_code == 201
        await api.post({"body": {"order": "ü"}})
        await attempts_of(api, made.json()["subscription_id"], 2)
    (mail,) = box.mails
    assert (mail["From"], mail["To"]) == ("queue@example.org", "a@b.org")
    assert mail["Subject"] == "An order"
    assert mail["webhook-signature"].startswith("v1,")
    content = mail.get_payload(decode=True)
    assert isinstance(content, bytes)
    assert json.loads(content)["body"] == {"order": "ü"}


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_speaks_tls_with_a_mail_server_that_proves_who_it_is(
    make_api: MakeApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_trusted: bool,
) -> None:
    cert, key = make_certificate(tmp_path, "mail")
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with receiving(tls_context=context, require_starttls=True) as (box, port):
        url = f"smtp://127.0.0.1:{port}"
        async with make_api(smtp_url=url, smtp_sender="queue@example.org") as api:
            subscription = {"subscriber": "mailto:a@b.org"}
            made = await api.call("POST", "subscriptions", subscription)
            await api.post({"body": 1})
            tried = await attempts_of(api, made.json()["subscription_id"], 1)
        outcome = "delivered" if is_trusted else "failed"
        assert (tried[0]["outcome"], len(box.mails)) == (outcome, int(is_trusted)), tried


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("smtp://mail", ("smtp", "mail", 587, None, None)),
        ("smtps://mail/", ("smtps", "mail", 465, None, None)),
        ("smtp+plain://mail:2525", ("smtp+plain", "mail", 2525, None, None)),
        ("smtp://me%40a.org:p%2F%3A%23@[::1]:25", ("smtp", "::1", 25, "me@a.org", "p/:#")),
        ("smtp://me@mail", ("smtp", "mail", 587, "me", None)),
        *((url, None) for url in ("mail", "mail:25", "http://mail", "smtp://", "smtp://mail:x")),
        *((url, None) for url in ("smtp://me:secret#1@mail", "smtp://me:1?secret@mail")),
        *((url, None) for url in ("smtp://mail/a", "smtp://[mail", "smtp://mail:70000")),
    ],
)
def test_a_url_says_which_server_and_how_it_is_spoken_to(
    url: str, wanted: tuple[object, ...] | None
) -> None:
    with pytest.raises(ConfigurationError, match="smtp_sender"):
        load(environment={}, overrides={"smtp_url": url})
    if wanted is not None:
        scheme, host, port, username, password = wanted
        assert Smtp.at(url, "a@b.org") == (scheme, host, port, "a@b.org", username, password)
        assert "p/:#" not in repr(Smtp.at(url, "a@b.org"))
        return
    with pytest.raises(ConfigurationError, match="smtp_url") as refused:
        Smtp.at(url, "a@b.org")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "a%40evil.org%2Cb@good.org",
        "a%3Cc%40d.org%3E@good.org",
        "all%3Aa%40b.org%3B@good.org",
        "a%0d%0ab@good.org",
        "a%00@good.org",
        "a%20b@good.org",
        "%22a%22@good.org",
        "a%5B@good.org",
        "%E2%82%AC@good.org",
        "a%FF@good.org",
        ".a@good.org",
        "a..b@good.org",
        "a@good..org",
        "a@",
        "@good.org",
        f"{'a' * 246}@good.org",
    ],
)
def test_a_mail_goes_to_one_address(address: str) -> None:
    with pytest.raises(Invalid, match="one address"):
        check_subscriber(f"mailto:{address}", {})


async def test_the_address_is_read_from_the_url(mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    mail = Mail(Smtp.at(f"smtp+plain://127.0.0.1:{port}", "queue@example.org"))
    longest, recipients = f"{'a' * 245}@good.org", []
    for address, recipient in (
        ("a.b%2Bc@good.org", "a.b+c@good.org"),
        ("a@localhost", "a@localhost"),
        (longest, longest),
    ):
        check_subscriber(f"mailto:{address}", {})
        url = f"mailto:{address}?to=x@good.org&bcc=y@good.org"
        assert await mail.send(Notification(url, {}, b"{}", {})) == Answer(200)
        recipients.append([recipient])
    # A stored subscriber that is no address is refused.
    answer = await mail.send(Notification("mailto:a%40evil.org%2Cb@good.org", {}, b"{}", {}))
    assert answer.refused
    assert box.recipients == recipients


async def test_a_mail_server_that_is_slow_at_each_command_has_one_time_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt, "_LONGEST_ATTEMPT", 0.5)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, asked = b"220 slow", b"-"
        while asked:
            await asyncio.sleep(0.2)
            writer.write(answer + b"\r\n")
            asked = await reader.readline()
            answer = b"250 slow"
        writer.close()
        has_ended.set()

    has_ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        mail = Mail(Smtp.at(f"smtp+plain://127.0.0.1:{port}", "queue@example.org"))
        sender = DeliverySender({"mailto": mail}, Clock(), has_ended=lambda _: False)
        one = Subscription("s", QueueRef("p", "q"), "mailto:a@b.org", 60, {}, 0, 0)
        delivery = Delivery("p", "q", "s", "m", 0, msgspec.Raw(b"{}"))
        result = await sender.attempt(delivery, one, None, is_fresh=True)
        await has_ended.wait()
    assert (result.outcome, result.answer.error) == (DeliveryOutcome.AGAIN, "no answer in time")
