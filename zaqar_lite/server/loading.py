"""Read the settings from file, environment and command line, check them, and read them again.

Each of these overrides the ones before it: the defaults, a TOML file (`--config` or
ZAQAR_LITE_CONFIG), environment variables with the prefix ZAQAR_LITE_, the command line. At SIGHUP
they are read again, and those that can change while the server runs are applied.
"""

import difflib
import logging
import os
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from zaqar_lite import environment as environment_names
from zaqar_lite.domain.errors import ConfigurationError, Invalid
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import UNLIMITED
from zaqar_lite.server import logs
from zaqar_lite.server.tls import Certificate
from zaqar_lite.service.key_files import read_key_file
from zaqar_lite.service.presigned_urls import NO_ID
from zaqar_lite.settings import Settings, comma_list

if TYPE_CHECKING:
    from zaqar_lite.api.application import Application

logger = logging.getLogger("zaqar_lite")
_PROVIDERS = ("keys", "jwt", "keystone")
_SHORTEST_KEY, _LONGEST_KEY = 32, 1_024
_GONE = frozenset(
    (
        *("default_claim_grace", "default_claim_ttl", "default_message_delay", "max_claim_grace"),
        *("max_copies_per_post", "max_length_client_id", "max_message_headers"),
        *("max_message_headers_size", "max_messages_per_post", "max_queues_per_page"),
        *("max_queues_per_project", "max_ranges", "max_request_head", "max_waiters"),
        *("min_length_client_id", "request_total_timeout", "signed_url_max_expires"),
        "sweep_interval",
    )
)
"""Settings of 0.2.0 whose defaults hold now; this release passes over them."""


def load(
    *,
    environment: Mapping[str, str],
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings from file, environment and command line.

    Raises:
        ConfigurationError: unknown name (the nearest is named), wrong value, or values that
            exclude each other.
    """
    for name, rest in environment_names.older_names(environment).items():
        if rest.partition("__")[0].lower() in Settings.model_fields:
            logger.warning("%s is not read any more: name it ZAQAR_LITE_%s", name, rest)
    given = environment_names.server_values(environment)
    named = given.pop(environment_names.CONFIG, None)
    path = config or (Path(named) if named else None)
    found: Mapping[str, Any] = {}
    if path is not None:
        found = _checked(_read_file(path), f"in {path}")
    where = f"in the environment, with the prefix {environment_names.PREFIX}"
    found = _over(found, _checked(environment_names.nested(given.items()), where))
    try:
        settings = Settings.model_validate({**found, **(overrides or {})})
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"The setting {name} is wrong: {first['msg']}.") from None
    _check_together(settings)
    return settings


def _over(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Mapping[str, Any]:
    """What two sources say together; of a mapping the later one sets the entries that it names."""
    found = {**earlier, **later}
    for name in earlier.keys() & later.keys():
        if isinstance(earlier[name], dict) and isinstance(later[name], dict):
            found[name] = {**earlier[name], **later[name]}
    return found


def signing_keys(settings: Settings) -> Mapping[str, bytes]:
    """The keys of pre-signed URLs by their ids: the first one signs, all of them verify.

    signed_url_secret_key has no id, and is the last one.

    Raises:
        ConfigurationError: signed_url_key_file is wrong.
    """
    keys: dict[str, bytes] = {}
    if settings.signed_url_key_file is not None:
        keys |= read_key_file(
            "signed_url_key_file",
            settings.signed_url_key_file,
            str.encode,
            range(_SHORTEST_KEY, _LONGEST_KEY + 1),
            f"{_SHORTEST_KEY} to {_LONGEST_KEY} characters: openssl rand -hex 32",
        )
    if settings.signed_url_secret_key is not None:
        keys[NO_ID] = settings.signed_url_secret_key.encode()
    return keys


def _check_gateways(settings: Settings) -> None:
    if settings.providers and (settings.gateways or settings.names_gateways):
        raise ConfigurationError(
            "gateways, gateway_secret and gateway_names are for auth none: elsewhere no gateway "
            "says who somebody is."
        )
    if any(len(secret) < _SHORTEST_KEY for secret in comma_list(settings.gateway_secret or "")):
        raise ConfigurationError(
            f"gateway_secret needs {_SHORTEST_KEY} bytes: openssl rand -hex 32."
        )
    for name in ("gateways", "gateway_secret", "gateway_names"):
        given = getattr(settings, name)
        if given and not comma_list(given):  # nobody would be asked to prove anything
            raise ConfigurationError(f"{name} is set, and names nothing: leave it out, or fill it.")
    if settings.gateway_names and settings.tls_client_ca is None:
        raise ConfigurationError("gateway_names needs tls_client_ca: who signs their certificates.")


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigurationError(f"Can't read the configuration {path}: {exc.strerror}.") from exc
    except ValueError as exc:  # of TOML, or of UTF-8
        raise ConfigurationError(f"The configuration {path} is not TOML: {exc}.") from exc


def _checked(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Refuse unknown names, and leave out those of earlier releases."""
    for name in values:
        if name in _GONE:
            logger.warning("the setting %s %s is one no more: its default holds", name, where)
        elif name == "coordination_url":  # without it the locks would be this process's own
            raise ConfigurationError(
                f"The setting {name} {where} is one of store_options now: "
                "ZAQAR_LITE_STORE_OPTIONS__COORDINATION_URL."
            )
        elif name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "the page `Settings` lists them all."
            raise ConfigurationError(f"Unknown setting {name!r} {where}; {hint}")
    return {name: value for name, value in values.items() if name not in _GONE}


def _check_together(settings: Settings) -> None:
    for smaller, larger in (
        ("max_message_delay", "max_message_ttl"),
        ("default_message_ttl", "max_message_ttl"),
    ):
        low, high = getattr(settings, smaller), getattr(settings, larger)
        if low > high:
            raise ConfigurationError(
                f"{smaller} ({low}) must not be above {larger} ({high}): change one of them."
            )
    _check_identity(settings)
    _check_gateways(settings)
    try:
        UNLIMITED.changed(settings.quotas)
    except Invalid as exc:
        raise ConfigurationError(f"The setting quotas is wrong: {exc}") from None
    secret = settings.signed_url_secret_key
    if secret is not None and len(secret.encode()) < _SHORTEST_KEY:
        raise ConfigurationError(
            f"signed_url_secret_key has {len(secret.encode())} bytes; with fewer than "
            f"{_SHORTEST_KEY} the signatures can be guessed. Make one: openssl rand -hex 32."
        )
    if settings.smtp_url is not None and settings.smtp_sender is None:
        raise ConfigurationError("smtp_url needs smtp_sender: the address that mails come from.")
    if settings.require_confirmation and not (secret or settings.signed_url_key_file):
        raise ConfigurationError(
            "require_confirmation needs signed_url_secret_key or signed_url_key_file: requests to "
            "confirm are signed."
        )
    if settings.is_loopback:
        return
    if not (settings.trust_headers or settings.providers or settings.names_gateways):
        raise ConfigurationError(
            f"The address {settings.host} is not loopback, and nobody authenticates: whoever "
            "reaches it may act for any project. Start with --auth keys; or put a gateway that "
            "authenticates in front, with gateway_secret or --trust-headers; or listen on "
            "127.0.0.1."
        )
    if settings.clock_offset_file is not None:
        raise ConfigurationError(
            "clock_offset_file is for tests: it is refused on an address that is not loopback."
        )


def _check_identity(settings: Settings) -> None:
    for name in settings.providers:
        if name not in _PROVIDERS:
            raise ConfigurationError(
                f"The setting auth is wrong: {name!r} is none of {', '.join(_PROVIDERS)}, "
                "or 'none'."
            )
    if "jwt" in settings.providers:
        for name in ("jwt_issuer", "jwt_audience", "jwt_keys"):
            if not getattr(settings, name):
                raise ConfigurationError(f"auth is jwt, so {name} must be set.")
    if "keystone" in settings.providers and not (settings.keystone_url or settings.keystone_cloud):
        raise ConfigurationError("auth is keystone, so keystone_url or keystone_cloud must be set.")
    if settings.keystone_url and not settings.keystone_url.startswith(("http://", "https://")):
        raise ConfigurationError("keystone_url must begin with http:// or https://.")
    if settings.policy_file is not None and {"jwt", "keystone"}.isdisjoint(settings.providers):
        raise ConfigurationError(
            "policy_file is about the roles of tokens: auth must name jwt or keystone."
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigurationError("tls_cert and tls_key go together: set both, or none.")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise ConfigurationError("tls_client_ca needs TLS: set tls_cert and tls_key too.")


_AT_START = {
    "max_queue_metadata",
    "max_messages_post_size",
    "max_messages_per_claim_or_pop",
    "max_wait",
    "max_waiters_per_project",
}
"""Limits that are built into the routes and the waiting requests at the start."""
_LIMITS = {field.name for field in fields(Limits)} & set(Settings.model_fields)
RELOADED = frozenset(_LIMITS - _AT_START | {"log_level", "quotas"})
"""The settings that SIGHUP changes."""


class Source(NamedTuple):
    """Where settings come from: a file, the environment of the process, the command line."""

    config: Path | None
    overrides: Mapping[str, Any]

    def read(self) -> Settings:
        """Read the settings.

        Raises:
            ConfigurationError: they are wrong.
        """
        return load(environment=os.environ, config=self.config, overrides=self.overrides)


@dataclass(eq=False, repr=False)
class Reloading:
    """Apply the settings that may change while the server runs.

    If one file is wrong, nothing changes: settings, certificate and policy file are all read and
    checked before any of them is applied.
    """

    settings: Settings
    source: Source
    certificate: Certificate | None
    app: "Application"

    def __post_init__(self) -> None:
        self.succeeded = True
        """Whether the last reload was applied; the start counts as one."""
        self.at = time.time()
        """When that last succeeded, in seconds since 1970."""

    def reload(self) -> None:
        """Read everything again; log an error in one line."""
        try:
            found = self.source.read()
            take_over = self.app.reread()
        except ConfigurationError as exc:
            logger.error("nothing was reloaded, the old settings stay: %s", exc)
            self.succeeded = False
            return
        self.succeeded = self.certificate is None or self.certificate.reload()
        if not self.succeeded:
            return
        take_over()
        self.at = time.time()
        new, old = found.model_dump(), self.settings.model_dump()
        changed = {name for name in new if new[name] != old[name]}
        taken, left = sorted(changed & RELOADED), sorted(changed - RELOADED)
        values = {name: new[name] if name in RELOADED else old[name] for name in new}
        self.settings = Settings.model_validate(values)
        logs.configure(self.settings.log_level)
        self.app.use_settings(self.settings.limits(), self.settings.default_quota)
        logger.info("reloaded: %s changed", ", ".join(taken) or "nothing")
        if left:
            logger.warning("only a restart changes %s", ", ".join(left))
