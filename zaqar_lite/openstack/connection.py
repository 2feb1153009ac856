"""Commands for one queue, with a client of the SDK that uses the `openstack` command's login."""

import argparse
import logging
from typing import Any

from osc_lib.command import command

from zaqar_lite.client import Client, KeystoneAuth

LOG = logging.getLogger(__name__)


def connect(app: Any) -> Client:  # noqa: ANN401 - cliff's application
    """Make a client for a command of this application, with the application's own login."""
    manager = app.client_manager
    endpoint = manager.get_endpoint_for_service_type(
        "messaging", region_name=manager.region_name, interface=manager.interface
    )
    return Client(
        auth=KeystoneAuth(manager.session, endpoint=endpoint),
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
