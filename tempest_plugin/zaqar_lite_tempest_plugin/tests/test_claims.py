"""Claims: create, show, renew, release, and what is refused."""

import uuid

from tempest import config
from tempest.lib import decorators, exceptions

from zaqar_lite_tempest_plugin import schemas
from zaqar_lite_tempest_plugin.client import claim_id_of
from zaqar_lite_tempest_plugin.tests.base import MessagingTest

CONF = config.CONF


class ClaimsTest(MessagingTest):
    """What a claim can do."""

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7c01")
    def test_claim_show_renew_release(self) -> None:
        """The whole life of a claim."""
        self.assertEqual([], self.client.claim(self.queue))
        self.client.post(self.queue, {"body": 1}, {"body": 2})
        held = self.client.claim(self.queue, limit=1, ttl=100)
        path = f"queues/{self.queue}/claims/{claim_id_of(held[0])}"
        shown = self.client.checked(schemas.claim, "GET", path)
        self.assertEqual((100, 1), (shown["ttl"], len(shown["messages"])))
        self.client.expect(204, "PATCH", path, {"ttl": 200, "grace": 60})
        self.assertEqual(200, self.client.checked(schemas.claim, "GET", path)["ttl"])
        self.client.expect(204, "DELETE", path)
        self.assertRaises(exceptions.NotFound, self.client.call, "GET", path)
        self.assertEqual(2, len(self.client.claim(self.queue)))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7c02")
    def test_no_message_has_two_holders(self) -> None:
        """Claims never overlap."""
        ids = self.client.post(self.queue, *({"body": n} for n in range(20)))
        seen: list[str] = []
        for _ in range(10):
            seen += [message["id"] for message in self.client.claim(self.queue, limit=3)]
        self.assertEqual(ids, seen)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7c03")
    def test_refuses_times_and_limits_out_of_range(self) -> None:
        """400, and nothing is claimed."""
        self.client.post(self.queue, {"body": 1})
        limits = CONF.zaqar_lite
        for limit, ttl, grace in (
            (1, 59, 60),
            (1, 60, 59),
            (1, limits.max_claim_ttl + 1, 60),
            (0, 60, 60),
            (limits.max_messages_per_claim + 1, 60, 60),
        ):
            self.assertRaises(
                exceptions.BadRequest,
                self.client.claim,
                self.queue,
                limit=limit,
                ttl=ttl,
                grace=grace,
            )
        self.assertEqual(1, len(self.client.claim(self.queue)))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7c04")
    def test_unknown_claims(self) -> None:
        """404 to read and renew, 204 to release."""
        path = f"queues/{self.queue}/claims/{uuid.uuid4().hex}"
        self.assertRaises(exceptions.NotFound, self.client.call, "GET", path)
        self.assertRaises(
            exceptions.NotFound, self.client.call, "PATCH", path, {"ttl": 60, "grace": 60}
        )
        self.client.expect(204, "DELETE", path)
