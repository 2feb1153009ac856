"""Mail: one message a delivery, by SMTP with TLS, from the one sender that the server is set to."""

from collections.abc import Mapping
from email.message import EmailMessage
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import aiosmtplib

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.subscriptions import mail_address
from zaqar_lite.service.delivery.attempt import Answer, Notification, Transport

_TIMEOUT = 20.0
_SUBJECT = "A message of a queue"
_LONGEST_SUBJECT = 200
_COPIED = ("webhook-id", "webhook-timestamp", "webhook-signature")


class Smtp(NamedTuple):
    """The SMTP server and how it is spoken to; `tls` is 'starttls', 'tls' or 'none'."""

    host: str
    port: int
    sender: str
    tls: str = "starttls"
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        """Show the server, not the account."""
        return f"Smtp({self.host!r}, {self.port}, {self.sender!r}, {self.tls!r})"


class Mail(Transport):
    """Send notifications to `mailto:` subscribers."""

    def __init__(self, smtp: Smtp) -> None:
        self._smtp = smtp

    async def send(self, notification: Notification) -> Answer:
        """Send a mail; 250 is shown as 200, a refusal for good as 400, for now as 503."""
        smtp = self._smtp
        try:
            mail = compose(notification, smtp.sender)
        except Invalid as exc:  # of a subscription that an earlier release let in
            return Answer(error=str(exc), refused=True)
        try:
            await aiosmtplib.send(
                mail,
                recipients=[mail["To"]],
                hostname=smtp.host,
                port=smtp.port,
                username=smtp.username,
                password=smtp.password,
                use_tls=smtp.tls == "tls",
                start_tls=smtp.tls == "starttls",
                timeout=_TIMEOUT,
            )
        except aiosmtplib.SMTPRecipientsRefused as exc:
            return _refused(exc.recipients[0].code if exc.recipients else 550)
        except aiosmtplib.SMTPResponseException as exc:
            return _refused(exc.code)
        except (aiosmtplib.SMTPException, OSError):
            return Answer(error="the mail server can't be reached")
        return Answer(200)


def compose(notification: Notification, sender: str) -> EmailMessage:
    """Write the mail: the notification as text, signed in its headers.

    Raises:
        Invalid: the subscriber is not one address.
    """
    asked = parse_qs(urlsplit(notification.subscriber).query).get("subject", [])
    subject = asked[0] if asked else _text(notification.options, "subject") or _SUBJECT
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = mail_address(notification.subscriber)
    mail["Subject"] = " ".join(subject.split())[:_LONGEST_SUBJECT]
    for name in _COPIED:
        if name in notification.headers:
            mail[name] = notification.headers[name]
    mail.set_content(notification.body.decode("utf-8", "replace"))
    return mail


def _refused(code: int) -> Answer:
    is_final = code >= 500
    return Answer(400 if is_final else 503, error=f"the mail server answered {code}")


def _text(options: Mapping[str, object], name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) and value else None
