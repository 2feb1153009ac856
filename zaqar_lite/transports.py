"""Put together what delivers to subscribers out of this server, from the settings."""

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.push.guard import Guard, port_of
from zaqar_lite.push.trusted import TrustedWebhooks
from zaqar_lite.push.webhook import Webhooks
from zaqar_lite.service.courier import Transport
from zaqar_lite.service.identity.trusts import Trusts
from zaqar_lite.settings import Settings


def webhooks_and_mail(settings: Settings, trusts: Trusts | None) -> dict[str, Transport]:
    """What delivers to the subscribers of each scheme."""
    ports = [settings.port, *map(port_of, (settings.store, settings.management_store or ""))]
    guard = Guard(settings.delivery_allowed.split(","), own_ports=ports)
    webhooks = Webhooks(guard)
    transports: dict[str, Transport] = {"http": webhooks, "https": webhooks}
    if trusts is not None:
        trusted = TrustedWebhooks(webhooks, trusts.token_of)
        transports |= {"trust+http": trusted, "trust+https": trusted}
    if settings.smtp_host is not None:
        transports["mailto"] = _mail(settings, settings.smtp_host)
    return transports


def _mail(settings: Settings, host: str) -> Transport:
    try:
        from zaqar_lite.push.mail import Mail, Smtp  # noqa: PLC0415 - a library of its own
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"smtp_host needs the Python package {exc.name!r}: pip install 'zaqar-lite[mail]'."
        ) from exc
    return Mail(
        Smtp(
            host,
            settings.smtp_port,
            settings.smtp_sender or "",
            settings.smtp_tls,
            settings.smtp_username,
            settings.smtp_password,
        )
    )
