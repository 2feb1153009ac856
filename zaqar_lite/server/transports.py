"""Make from the settings what delivers to subscribers: webhooks and mail."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.push.guard import Guard, port_of
from zaqar_lite.push.trusted import TrustedWebhooks
from zaqar_lite.service.delivery.attempt import Answer, Notification, Transport
from zaqar_lite.service.identity.trusts import Trusts
from zaqar_lite.settings import Settings

if TYPE_CHECKING:
    from zaqar_lite.push.webhook import Webhooks


def guard_of(settings: Settings) -> Guard:
    """Make what decides which addresses may be called."""
    ports = [settings.port, *map(port_of, (settings.store, settings.management_store or ""))]
    return Guard(settings.delivery_allowed.split(","), own_ports=ports)


def webhooks_and_mail(
    settings: Settings, trusts: Trusts | None, guard: Guard
) -> dict[str, Transport]:
    """The transport of each scheme of a subscriber's URL."""
    webhooks = _Webhooks(guard)
    transports: dict[str, Transport] = {"http": webhooks, "https": webhooks}
    if trusts is not None:
        trusted = TrustedWebhooks(webhooks, trusts.token_of)
        transports |= {"trust+http": trusted, "trust+https": trusted}
    if settings.smtp_url is not None:
        transports["mailto"] = _mail(settings.smtp_url, settings.smtp_sender or "")
    return transports


class _Webhooks(Transport):
    """Webhooks that import their HTTP library, in a thread, at the first notification.

    Importing it takes a fifth of a second, which would delay the start of every server.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._webhooks: Webhooks | None = None
        self._closed = False

    async def send(self, notification: Notification) -> Answer:
        """POST a notification. It never raises: a failure is in the answer."""
        webhooks = self._webhooks
        if webhooks is None:
            library = await asyncio.to_thread(import_module, "zaqar_lite.push.webhook")
            webhooks = self._webhooks = self._webhooks or library.Webhooks(self._guard)
        if self._closed:
            return Answer(error="this server is stopping")  # nobody would close the connection
        return await webhooks.send(notification)

    async def close(self) -> None:
        """Close all connections, and make no others."""
        self._closed = True
        if self._webhooks is not None:
            await self._webhooks.close()


def _mail(url: str, sender: str) -> Transport:
    try:
        from zaqar_lite.push.mail import Mail, Smtp  # noqa: PLC0415 - a library of its own
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"smtp_url needs the Python package {exc.name!r}: pip install 'zaqar-lite[mail]'."
        ) from exc
    return Mail(Smtp.at(url, sender))
