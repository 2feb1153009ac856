"""Mail goes out by a real SMTP server."""

import asyncio
import json
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from tests.api.conftest import MakeApi, make_api  # noqa: F401 - a fixture
from tests.services.process import free_port
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.loading import load

pytestmark = pytest.mark.anyio


class Mailbox:
    """Keeps what it is sent; `refuses` is what it answers instead."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.refuses: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refuses:
            return self.refuses.pop(0)
        self.mails.append(BytesParser().parsebytes(envelope.content))
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    controller = Controller(box, hostname="127.0.0.1", port=free_port())
    controller.start()
    yield box, controller.port
    controller.stop()


async def test_sends_a_mail_from_the_servers_own_sender(
    make_api: MakeApi,  # noqa: F811
    mailbox: tuple[Mailbox, int],
) -> None:
    box, port = mailbox
    box.refuses = ["451 later"]
    smtp = {
        "smtp_host": "127.0.0.1",
        "smtp_port": port,
        "smtp_tls": "none",
        "smtp_sender": "queue@example.org",
    }
    async with make_api(**smtp) as api:
        policy = {"minimum_delay": 0, "maximum_delay": 10}
        options = {"subject": "not this", "from": "not@me.org", "_retry_policy": policy}
        made = await api.call(
            "POST",
            "subscriptions",
            {"subscriber": "mailto:a@b.org?subject=An%20order", "options": options},
        )
        assert made.status_code == 201
        await api.post({"body": {"order": "ü"}})
        for _ in range(200):
            if box.mails:
                break
            await asyncio.sleep(0.05)
    (mail,) = box.mails
    assert (mail["From"], mail["To"]) == ("queue@example.org", "a@b.org")
    assert mail["Subject"] == "An order"
    assert mail["webhook-signature"].startswith("v1,")
    content = mail.get_payload(decode=True)
    assert isinstance(content, bytes)
    assert json.loads(content)["body"] == {"order": "ü"}


def test_needs_a_sender() -> None:
    with pytest.raises(ConfigurationError, match="smtp_sender"):
        load(environment={}, overrides={"smtp_host": "mail"})
