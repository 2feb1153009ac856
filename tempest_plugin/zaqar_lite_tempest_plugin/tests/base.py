"""What all tests share: a client of the primary project, and queues that are deleted after."""

import uuid
from typing import Any

from tempest import config, test

from zaqar_lite_tempest_plugin.client import MessagingClient

CONF = config.CONF


class MessagingTest(test.BaseTestCase):
    """A test with a messaging client and a queue name of its own."""

    credentials = ["primary"]  # noqa: RUF012 - tempest's own form
    client: MessagingClient

    @classmethod
    def skip_checks(cls) -> None:
        """Skip where the service is not expected."""
        super().skip_checks()
        if not CONF.service_available.zaqar_lite:
            raise cls.skipException("Zaqar Lite is not expected to be available")

    @classmethod
    def setup_clients(cls) -> None:
        """Make the client."""
        super().setup_clients()
        cls.client = MessagingClient(
            cls.os_primary.auth_provider,
            CONF.zaqar_lite.catalog_type,
            CONF.zaqar_lite.region or CONF.identity.region,
        )

    def setUp(self) -> None:
        """Choose a queue."""
        super().setUp()
        self.queue = self.new_name()

    def new_name(self) -> str:
        """A queue name that nobody else has; the queue is deleted after the test."""
        name = f"tempest-{uuid.uuid4().hex}"
        self.addCleanup(self.client.delete_queue, name)
        return name

    def create(self, **metadata: Any) -> str:
        """Create the test's queue."""
        self.client.create_queue(self.queue, metadata)
        return self.queue


class AdditionsTest(MessagingTest):
    """A test of what Zaqar Lite adds to Zaqar."""

    @classmethod
    def skip_checks(cls) -> None:
        """Skip where the additions are not expected."""
        super().skip_checks()
        if not CONF.zaqar_lite.additions:
            raise cls.skipException("The additions are not expected to be available")
