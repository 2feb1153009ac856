"""Commands for one queue, with a client of the SDK that uses the `openstack` command's login."""

import argparse
import logging
from collections.abc import Mapping
from typing import Any

from osc_lib.command import command

from zaqar_lite.client import Client

LOG = logging.getLogger(__name__)


class OpenStackAuth:
    """The token and the catalogue of the `openstack` command's own session."""

    def __init__(self, manager: Any) -> None:  # noqa: ANN401 - osc-lib's client manager
        self._manager = manager
        self._headers: Mapping[str, str] | None = None
        self._url: str | None = None

    def headers(self) -> Mapping[str, str] | None:
        """Return the token; None before the login."""
        return self._headers

    def login(self) -> None:
        """Have the session log in, and look the service up."""
        session = self._manager.session
        headers = dict(session.get_auth_headers() or {})
        project = session.get_project_id()
        if project:
            headers["X-Project-ID"] = project
        self._url = self._manager.get_endpoint_for_service_type(
            "messaging",
            region_name=self._manager.region_name,
            interface=self._manager.interface,
        )
        self._headers = headers

    def forget(self) -> bool:
        """Drop the token; a new login gets another."""
        self._headers = None
        return bool(self._manager.session.invalidate())

    def url(self) -> str | None:
        """Return the service's address in the catalogue."""
        return self._url


def connect(app: Any) -> Client:  # noqa: ANN401 - cliff's application
    """Make a client for a command of this application."""
    return Client(
        auth=OpenStackAuth(app.client_manager),
        on_warning=lambda warning: LOG.warning("%s", warning.description),
    )


class QueueCommand(command.Command):
    """A command whose first argument is a queue."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("queue", metavar="<queue>")
        self.arguments(parser)
        return parser

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments besides the queue."""
