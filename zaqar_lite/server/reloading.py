"""Read the settings again at SIGHUP, and apply those that can change while the server runs."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.server import logs
from zaqar_lite.server.loading import load
from zaqar_lite.server.tls import Certificate
from zaqar_lite.settings import Settings

logger = logging.getLogger("zaqar_lite")
_AT_START = {
    "max_queue_metadata",
    "max_messages_post_size",
    "max_messages_per_claim_or_pop",
    "max_wait",
    "max_waiters",
    "max_waiters_per_project",
    "signed_url_max_expires",
}
"""Limits that are built into the routes and the waiting requests at the start."""
RELOADED = frozenset({field.name for field in fields(Limits)} - _AT_START | {"log_level", "quotas"})
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


class Reloaded(Protocol):
    """What the application can change while it runs: its limits, default quotas and policy file."""

    adopt: Callable[[Limits], None]
    adopt_quotas: Callable[[Quota], None]
    reread: Callable[[], Callable[[], None]]


class Reloading:
    """Apply the settings that may change while the server runs.

    If one file is wrong, nothing changes: settings, certificate and policy file are all read and
    checked before any of them is applied.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        certificate: Certificate | None,
        app: Reloaded,
    ) -> None:
        self._settings = settings
        self._source = source
        self._certificate = certificate
        self._app = app
        self.succeeded = True
        """Whether the last reload was applied; the start counts as one."""
        self.at = time.time()
        """When that last succeeded, in seconds since 1970."""

    def reload(self) -> None:
        """Read everything again; log an error in one line."""
        try:
            found = self._source.read()
            take_over = self._app.reread()
        except ConfigurationError as exc:
            logger.error("nothing was reloaded, the old settings stay: %s", exc)
            self.succeeded = False
            return
        self.succeeded = self._certificate is None or self._certificate.reload()
        if not self.succeeded:
            return
        take_over()
        self.at = time.time()
        new, old = found.model_dump(), self._settings.model_dump()
        changed = {name for name in new if new[name] != old[name]}
        taken, left = sorted(changed & RELOADED), sorted(changed - RELOADED)
        values = {name: new[name] if name in RELOADED else old[name] for name in new}
        self._settings = Settings.model_validate(values)
        logs.configure(self._settings.log_level)
        self._app.adopt(self._settings.limits())
        self._app.adopt_quotas(self._settings.default_quota)
        logger.info("reloaded: %s changed", ", ".join(taken) or "nothing")
        if left:
            logger.warning("only a restart changes %s", ", ".join(left))
