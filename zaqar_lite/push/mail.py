"""Mail: one message a delivery, by SMTP with TLS, from the one sender that the server is set to."""

from dataclasses import dataclass
from email.message import EmailMessage
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import aiosmtplib

from zaqar_lite.domain.errors import ConfigurationError, Invalid
from zaqar_lite.domain.subscriptions import mail_address
from zaqar_lite.service.delivery.attempt import Answer, Notification, Transport

_SUBJECT = "A message of a queue"
_LONGEST_SUBJECT = 200
_COPIED = ("webhook-id", "webhook-timestamp", "webhook-signature")
_PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}


class Smtp(NamedTuple):
    """The SMTP server and how it is spoken to; `scheme` is one of `_PORTS`."""

    scheme: str
    host: str
    port: int
    sender: str
    username: str | None
    password: str | None

    @classmethod
    def at(cls, url: str, sender: str) -> "Smtp":
        """The server of a URL, `SCHEME://USER:PASSWORD@HOST:PORT` with parts in percent-encoding.

        Without a port it is the scheme's own: 587 with STARTTLS, 465 with TLS, 25 with neither.

        Raises:
            ConfigurationError: it is no such URL; shows nothing of it.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in _PORTS or any((parts.path.strip("/"), *parts[3:])):
            raise ConfigurationError(
                "smtp_url is no URL of a mail server: smtp://USER:PASSWORD@HOST:PORT is needed, or "
                "smtps:// or smtp+plain://, with %40 for an @ in the password."
            )
        username, password = parts.username, parts.password
        return cls(
            parts.scheme,
            host,
            port or _PORTS[parts.scheme],
            sender,
            None if username is None else unquote(username),
            None if password is None else unquote(password),
        )

    def __repr__(self) -> str:
        """Show the server, not the account."""
        return f"Smtp({self.scheme!r}, {self.host!r}, {self.port}, {self.sender!r})"


@dataclass(eq=False, repr=False)
class Mail(Transport):
    """Send notifications to `mailto:` subscribers."""

    smtp: Smtp

    async def send(self, notification: Notification) -> Answer:
        """Send a mail; 250 is shown as 200, a refusal for good as 400, for now as 503."""
        try:
            mail = compose(notification, self.smtp.sender)
        except Invalid as exc:  # of a subscription that an earlier release let in
            return Answer(error=str(exc), refused=True)
        try:
            await aiosmtplib.send(
                mail,
                recipients=[mail["To"]],
                hostname=self.smtp.host,
                port=self.smtp.port,
                username=self.smtp.username,
                password=self.smtp.password,
                use_tls=self.smtp.scheme == "smtps",
                start_tls=self.smtp.scheme == "smtp",
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
    subject = asked[0] if asked else str(notification.options.get("subject") or _SUBJECT)
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
    return Answer(400 if code >= 500 else 503, error=f"the mail server answered {code}")
